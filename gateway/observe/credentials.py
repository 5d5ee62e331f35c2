"""What looks like a credential in a text, whoever's it is: keys and tokens of well-known shapes, and values under secrets' names.

Invariant: any text costs time in proportion to its length. A pattern either needs no more than so many characters to fail, or
begins only where the run that it reads begins. docs/admin.md lists what is known.
"""

import re

MASK = "[redacted]"

SUSPECT = (
    r"authorization|cookie|key|token|passw|pwd|passphrase|secret|credential|bearer|sk-|gh[oprsu]_|github_pat_|glpat-|hf_|xox|"
    r"akia|asia|aiza|eyj|://[^\s/]{0,256}@"
)
"""Matches the lower case of every text in which `masked` finds anything: a quick look, as most hold none. (Case that is ignored
by the pattern costs ten times as much.)"""

# Names whose value is a secret whatever it is. `key` and `token` alone are words of many tools' arguments: see `_LIKELY`.
_NAMES = (
    r"(?:(?:api|app|access|secret|private|auth|refresh|session|client|signing|bearer)[-_]?(?:key|token|secret)"
    r"""|passw(?:or)?d|pwd(?!\\{0,4}["']?\s*[:=]\s*\\{0,4}["']?[/~])|passphrase|secret|credentials?)"""  # a folder is no secret
)
_IS = r"""\\{0,4}["']?\s*[:=]\s*(?:b(?=["']))?\\{0,4}["']?"""  # between a name and its value; JSON may stand in a text of JSON
# Up to the end of the quotes that it stands in, if any; what begins a list or an object is none.
_VALUE = (
    r"""(?:(?<=[^\\]")(?:[^"\\\r\n]|\\.)+|(?<=[^\\]')(?:[^'\\\r\n]|\\.)+|(?<=\\["'])[^"'\\\r\n]+"""
    r"""|(?<!["'])[^\s"',;&{}\[\]\\][^\s"',;&}\\]*)"""
)
_LIKELY = r"(?=[A-Za-z]{0,64}[0-9])(?=[0-9]{0,64}[A-Za-z])[A-Za-z0-9]{12,}[A-Za-z0-9+/=_.-]*"  # no word, nor several
_PAIR = r"""\(b?["'][\w-]{0,40}"""  # of headers, in Python's own notation
_SHAPES = (
    r"sk-[A-Za-z0-9_-]{8,}",
    r"gh[oprsu]_[A-Za-z0-9]{16,}",
    r"github_pat_[A-Za-z0-9_]{16,}",
    r"glpat-[A-Za-z0-9_-]{16,}",
    r"hf_[A-Za-z0-9]{16,}",
    r"xox[a-z]-[A-Za-z0-9-]{10,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"AIza[A-Za-z0-9_-]{30,}",
    r"(?<![_-])eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?",  # a JWT, also where its end is cut
)
_CREDENTIALS = (
    re.compile(r"(-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,10}-----).*?(?=-----END|\Z)", re.DOTALL),
    re.compile(rf"""((?:authorization|cookie){_IS})[^\r\n"']+""", re.IGNORECASE),
    re.compile(rf"""({_PAIR}(?:authorization|cookie|{_NAMES})["'],\s*b?["'])[^\r\n"']+""", re.IGNORECASE),
    re.compile(rf"({_NAMES}{_IS}){_VALUE}", re.IGNORECASE),
    re.compile(rf"((?<![A-Za-z])(?:key|token){_IS}){_LIKELY}", re.IGNORECASE),
    re.compile(r"""(\bbearer\s+)[^\s"',;&}]{6,}""", re.IGNORECASE),
    re.compile(rf"(\b)(?:{'|'.join(_SHAPES)})"),
    re.compile(r"""(://[^\s/@:"']*:)[^\s/"']+(?=@)"""),
)
_SUSPECT = re.compile(SUSPECT)


def masked(text: str) -> str:
    """The text without them."""
    if _SUSPECT.search(text.lower()):
        for credential in _CREDENTIALS:
            text = credential.sub(rf"\1{MASK}", text)
    return text
