"""Debian's Chromium, without a window, as a test looks at a page."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from playwright.async_api import Browser, BrowserContext, Page, async_playwright
from support.services import program


@dataclass
class Looking:
    """A page, and what the browser did for it: where it asked, and what it complained of."""

    page: Page
    asked: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A browser, which asks no network of its own accord."""
    async with async_playwright() as play:
        started = await play.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox"])
        try:
            yield started
        finally:
            await started.close()
            await asyncio.sleep(0)


@asynccontextmanager
async def looking(started: Browser, width: int = 1280, height: int = 900, *, scripts: bool = True) -> AsyncIterator[Looking]:
    """A page of a browser. Without `scripts` it runs none."""
    context: BrowserContext = await started.new_context(viewport={"width": width, "height": height}, java_script_enabled=scripts)
    try:
        page = await context.new_page()
        seen = Looking(page)
        page.on("request", lambda request: seen.asked.append(request.url))
        page.on("console", lambda message: seen.complaints.append(message.text))
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.on("dialog", lambda dialog: seen.complaints.append(f"dialog: {dialog.message}"))
        yield seen
    finally:
        await context.close()
