"""What looks like a credential goes, ordinary words stay, and no text costs more than its length."""

import time

import pytest

from gateway.observe.credentials import MASK, masked

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA7\nabcd\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a is it", f"{MASK} is it"),
        ("github_pat_11ABCDEFG0abcdefghij", MASK),
        ("glpat-abcdefghij0123456789", MASK),
        ("hf_abcdefghijklmnopqrstuvwxyz", MASK),
        ("xoxb-123456789012-abcdefghijklmnop", MASK),
        ("id AKIAIOSFODNN7EXAMPLE.", f"id {MASK}."),
        ("AIzaSyA1234567890abcdefghijklmnopqrstuv", MASK),
        ("sk-proj-abcdef_123456", MASK),
        (f"<{JWT}>", f"<{MASK}>"),
        (JWT.rpartition(".")[0], MASK),
        (PEM, f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END RSA PRIVATE KEY-----"),
        (PEM[:50], f"-----BEGIN RSA PRIVATE KEY-----{MASK}"),
        (PEM.replace("\n", "\\n"), f"-----BEGIN RSA PRIVATE KEY-----{MASK}-----END RSA PRIVATE KEY-----"),
        ("postgres://user:s3cretpw@db/x", f"postgres://user:{MASK}@db/x"),
        ("http://:p@ss:w@h:80/?a=b", f"http://:{MASK}@h:80/?a=b"),
        ('{"password": "two words", "n": 1}', f'{{"password": "{MASK}", "n": 1}}'),
        ('{"password": "a \\" b", "n": 1}', f'{{"password": "{MASK}", "n": 1}}'),
        ('{"password": "two wor', f'{{"password": "{MASK}'),
        ("{'passwd': 'two words', 'n': 1}", f"{{'passwd': '{MASK}', 'n': 1}}"),
        ('"{\\"password\\": \\"two words\\", \\"n\\": 1}"', f'"{{\\"password\\": \\"{MASK}\\", \\"n\\": 1}}"'),
        ("password=bob", f"password={MASK}"),
        ("Authorization: Bearer abc", f"Authorization: {MASK}"),
        ("{'password': b'bob'}", f"{{'password': b'{MASK}'}}"),
        ("pwd=pw1234567&n=1", f"pwd={MASK}&n=1"),
        ("passphrase: correct horse", f"passphrase: {MASK} horse"),
        ("client_secret=abc;x", f"client_secret={MASK};x"),
        ('{"aws_secret_access_key": "wJalrXUtnFEMI/K7"}', f'{{"aws_secret_access_key": "{MASK}"}}'),
        ('{"apikey":"x"}', f'{{"apikey":"{MASK}"}}'),
        ('{"token": "abc123def456"}', f'{{"token": "{MASK}"}}'),
        ('{"key":"SECRETVALUE1"}', f'{{"key":"{MASK}"}}'),
        ("hf_token=abc123def456-x", f"hf_token={MASK}"),
        ("[(b'x-api-key', b'abcdef'), (b'a', b'b')]", f"[(b'x-api-key', b'{MASK}'), (b'a', b'b')]"),
        ("PASSWORD=abc BEARER abcdef", f"PASSWORD={MASK} BEARER {MASK}"),
        ("('authorization', 'Basic YTpi')", f"('authorization', '{MASK}')"),
    ],
)
def test_what_looks_like_a_credential_goes_and_nothing_else(text: str, left: str) -> None:
    assert masked(text) == left
    assert masked(left) == left


@pytest.mark.parametrize(
    "text",
    [
        '{"key": "value"}',
        '{"key": "user_profile_2024", "sort_key": "created_at_desc", "token": "hello"}',
        '{"key": "Enter"} {"key": "Ctrl+Shift+F12"}',
        "first_token=0.25 max_tokens=1000000 eos_token: </s> next_token: 128009",
        '"required": ["username", "password", "email"]',
        '{"password": {"type": "string", "description": "what it is"}}',
        '{"secrets": [], "tokens": ["abc123def456"]}',
        "pwd: /home/b PWD=~/a",
        "http://127.0.0.1:8000/v1?to=a@b.example mail me@host.example",
        "engine a@10.0.0.1 is up; the key is under the mat; a token of love",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "hf_hub_download(repo_id) ghp_x sk-1 AKIA eyJhbGciOiJIUzI1NiJ9",
        "monkey=abc123def456789",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert masked(text) == text


PIECES = [
    "eyJ-",
    "eyJaaaaaaaaaaaa.",
    "eyJaaaaaaaaaaaa.a ",
    "://a:",
    "://",
    ":",
    "a@",
    "://a:b@c",
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN A A A A ",
    'password: "',
    'password: "\\',
    "password ",
    'password\\\\"',
    "password='",
    "pwd=/",
    "key=",
    "key=aaaaaaaaaaaaa",
    "key=1111111111111",
    "('api_key",
    "('a",
    "api_key",
    "bearer ",
    "ghp_",
    "hf_hf_",
    " ",
    "\\",
    '"',
    "a",
]


@pytest.mark.parametrize("piece", PIECES)
def test_hostile_text_costs_linear_time(piece: str) -> None:
    def cost_s(length: int) -> float:
        text = "token " + piece * (length // len(piece))
        best_s = 10.0
        for _ in range(3):
            start = time.thread_time()  # of this thread's processor, whoever else wants it
            masked(text)
            best_s = min(best_s, time.thread_time() - start)
        return best_s

    assert cost_s(1 << 17) < 64 * cost_s(1 << 13) + 0.01  # 16 times the text; quadratic would be 256 times the time


def test_a_megabyte_of_everything_hostile_is_read() -> None:
    text = "".join(piece * 1000 for piece in PIECES)
    assert len(masked("token " + text * (1 + (1 << 20) // len(text)))) > 1000
