"""What a server answers at `/`: a page for whoever opens its address in a browser, or the same as a document.

Everybody may read it, so it has nothing that a stranger may not know: the server's title, which a 401 has as well, and
the calls, which are in the documentation. The version is left out where tokens are needed, since it would tell a
stranger which faults to try; `/status` has it. The page has no script, no style, no form and no cookie, and its policy
has the browser refuse them.
"""

from collections.abc import Mapping
from html import escape
from typing import NamedTuple

from aiohttp import hdrs, web

from quire import __version__

from .bodies import JSON, MSGPACK, accepted, answer

HTML = "text/html"
DOCUMENTED = ("docs/http.md", "docs/command-line.md", "deploy/runbook.md")
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    hdrs.VARY: hdrs.ACCEPT,
}
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{title}</title></head>
<body>
<h1>{title}</h1>
<p>{about}</p>
<h2>Main calls</h2>
<dl>
{calls}
</dl>
<p>quire's source documents all of them: {documented}.</p>
</body>
</html>
"""


class FrontPage(NamedTuple):
    """What a server says about itself. `calls` are its main ones, such as `GET /status`, and what each does."""

    title: str
    about: str
    calls: Mapping[str, str]
    is_open: bool
    """Whether callers need no token."""


def front_page(request: web.Request, front: FrontPage) -> web.Response:
    """The page as HTML, or as JSON or msgpack if the request accepts that and names it before HTML."""
    if accepted(request, (HTML, JSON, MSGPACK)) == HTML:
        return web.Response(text=_as_html(front), content_type=HTML, charset="utf-8", headers=HEADERS)
    document = {"server": front.title, "about": front.about, "calls": dict(front.calls), "documentation": DOCUMENTED}
    if front.is_open:
        document["version"] = __version__
    return answer(request, document, HEADERS)


def _as_html(front: FrontPage) -> str:
    version = f" This is version {__version__}." if front.is_open else ""
    calls = "\n".join(f"<dt>{_call(call)}</dt><dd>{escape(does)}</dd>" for call, does in front.calls.items())
    documented = ", ".join(f"<code>{escape(page)}</code>" for page in DOCUMENTED)
    about = escape(front.about + version)
    return PAGE.format(title=escape(front.title), about=about, calls=calls, documented=documented)


def _call(call: str) -> str:
    """The call, linked if a browser can make it as it stands."""
    method, _, path = call.partition(" ")
    text = f"<code>{escape(call)}</code>"
    return f'<a href="{escape(path)}">{text}</a>' if method == hdrs.METH_GET and "{" not in path else text
