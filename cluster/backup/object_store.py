"""Backups in object stores, through obstore; and the store that a URL names.

    s3://BUCKET[/PREFIX]    AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION, AWS_ENDPOINT_URL, ...
    gs://BUCKET[/PREFIX]    GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT_KEY, ...
    az://CONTAINER[/PREFIX] AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY, ...

obstore takes credentials from these variables, or from the machine that it runs on. A store must have a conditional
put: without it two writers could not be told apart (`check_conditional`).

obstore panics, with a stack on stderr, at some values that cannot be: they are found before (`_check_values`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from .store import (
    FILE_SCHEME,
    SCHEMES,
    FolderStore,
    Store,
    Stored,
    StoreFailed,
    StoreMissing,
    StoreRefused,
    StoreTaken,
    check_size,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Opened

PROBE = "probe/"
FORMS = "a folder, or s3://BUCKET/PREFIX, gs://..., az://... or file://..."
CLIENT_OPTIONS = frozenset(
    [
        "allow_http",
        "allow_invalid_certificates",
        "connect_timeout",
        "proxy_ca_certificate",
        "proxy_excludes",
        "proxy_url",
        "read_timeout",
        "root_certificate",
        "timeout",
        "user_agent",
    ]
)
"""Options of the HTTP client; all others are of the store."""
VARIABLES = {"s3": "AWS_", "gs": "GOOGLE_", "az": "AZURE_"}
DELETED_AT_ONCE = 1_000
CAUSE_CHARACTERS = 300
NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")
_ATTEMPTS = re.compile(r"Error performing (\S+) (\S+) in [^,\s]+(?:, after \d+ retries, .*?retry_timeout: \S+)? - ")
_BOILERPLATE = re.compile(r"Generic \w+ error: |Server returned non-2xx status code: |Error performing list request: ")
_FOR_CREDENTIALS = re.compile(r"://(169\.254\.\d|metadata\.google\.internal)|/latest/api/token|token request")
"""A request of those by which a cloud's machine finds credentials: the last place that is asked."""
_REFUSED = re.compile(r"status code: 40[13] ")
_ENDPOINT = re.compile(r"((aws|azure|azure_storage)_)?endpoint(_url(_s3)?)?", re.IGNORECASE)
_IN_HEADERS = re.compile(r"(aws_)?(access_key_id|secret_access_key|session_token|(default_)?region)", re.IGNORECASE)


class Patience(NamedTuple):
    """How long a store may take, in seconds: to accept a connection, to answer a request, and with all retries."""

    connect_s: float = 5.0
    request_s: float = 60.0
    retry_s: float = 30.0
    retries: int = 5


def open_store(url: str, options: Mapping[str, str], patience: Patience = Patience()) -> Store:  # noqa: B008  # Immutable.
    """The store that a path or URL names. Nothing is read or written.

    Raises:
        StoreRefused: there is no such kind of store, obstore is not installed, or an option is unknown or invalid.
    """
    if url.startswith(SCHEMES):
        return ObjectStore(url, options, patience)
    if _SCHEME.match(url) and not url.startswith(FILE_SCHEME):
        raise StoreRefused(f"{_shown(url)} is no place for a backup; give {FORMS}")
    if options:
        raise StoreRefused(f"a folder has no options such as {next(iter(options))!r}; leave out --store-option")
    path = unquote(url.removeprefix(FILE_SCHEME)) if url.startswith(FILE_SCHEME) else url
    if not path or (path != url and not path.startswith("/")):
        raise StoreRefused(f"{url!r} names no folder, such as /srv/backup or file:///srv/backup; give {FORMS}")
    if Path(path).exists() and not Path(path).is_dir():
        raise StoreRefused(f"{path} is a file; a backup needs a folder")
    return FolderStore(Path(path))


def check_conditional(store: Store) -> None:
    """Check that a store refuses to create what is there already. Blocks.

    Raises:
        StoreRefused: it does not.
        StoreFailed: it failed.
    """
    key = f"{PROBE}{token_hex(8)}"
    try:
        with suppress(StoreTaken):  # Its answer was lost, and it was repeated: nobody else has this key.
            store.create(key, b"first")
        store.create(key, b"second")
    except StoreTaken:
        return
    finally:
        with suppress(StoreFailed):
            store.delete([key])
    raise StoreRefused(
        f"{store.name} replaces what is there although it was asked not to (a put with If-None-Match), so two writers "
        "could not be told apart; choose another store"
    )


class ObjectStore:
    """Objects of a bucket, below a prefix; implements `Store`."""

    def __init__(self, url: str, options: Mapping[str, str], patience: Patience) -> None:
        """Raises StoreRefused."""
        self._name = _shown(url)
        self._obstore = _imported()
        _check_values(self._name, VARIABLES[url[:2]], options)
        of_client = {name: value for name, value in options.items() if name in CLIENT_OPTIONS}
        limits = {"connect_timeout": f"{patience.connect_s}s", "timeout": f"{patience.request_s}s"}
        # Whoever names an endpoint by http:// means it; those that obstore knows by itself are https.
        of_client = limits | {"allow_http": "true"} | of_client
        self._store = _opened(url, self._name, options, of_client, patience)

    @property
    def name(self) -> str:
        """The URL."""
        return self._name

    def get(self, key: str, most: int) -> bytes:
        """See `Store`."""
        with self._failing():
            try:
                found = self._obstore.get(self._store, key)  # The head of the answer; nothing of the body is read yet.
                check_size(key, self._name, found.meta["size"], most)
                return bytes(found.bytes())
            except (self._obstore.exceptions.NotFoundError, FileNotFoundError) as error:
                if _code_of(error) not in ("", "NoSuchKey", "BlobNotFound"):
                    raise  # Such as a caller whom the store does not know: nothing is said about the object.
                raise StoreMissing(key, self._name) from None

    def put(self, key: str, data: bytes) -> None:
        """See `Store`. One request: parts of what was cut short would stay in the store, hidden and paid for."""
        with self._failing():
            self._obstore.put(self._store, key, data, use_multipart=False)

    def create(self, key: str, data: bytes) -> None:
        """See `Store`."""
        errors = self._obstore.exceptions
        with self._failing():
            try:
                self._obstore.put(self._store, key, data, mode="create", use_multipart=False)
            except (errors.AlreadyExistsError, errors.PreconditionError):
                raise StoreTaken(key) from None
            except (errors.BaseError, NotImplementedError) as error:
                if not isinstance(error, (errors.NotSupportedError, NotImplementedError)) and not _lacks(error):
                    raise
                reason = "has no conditional put, by which two writers are told apart"
                raise StoreRefused(f"{self._name} {reason}; choose another store") from None

    def list(self, prefix: str) -> dict[str, Stored]:
        """See `Store`."""
        found = dict[str, Stored]()
        with self._failing():
            for page in self._obstore.list(self._store, prefix):
                for row in page:
                    found[row["path"]] = Stored(row["size"], row["last_modified"].timestamp())
        return found

    def delete(self, keys: Sequence[str]) -> None:
        """See `Store`."""
        for start in range(0, len(keys), DELETED_AT_ONCE):
            part = list(keys[start : start + DELETED_AT_ONCE])
            with self._failing():
                try:
                    self._obstore.delete(self._store, part)
                except (self._obstore.exceptions.NotFoundError, FileNotFoundError) as error:
                    if _code_of(error) not in ("", "NoSuchKey", "BlobNotFound"):
                        raise
                    for key in part if len(part) > 1 else ():
                        self.delete([key])

    @contextmanager
    def _failing(self) -> Generator[None]:
        """Raise what obstore raises as a StoreFailed."""
        errors = self._obstore.exceptions
        try:
            yield
        except StoreFailed:
            raise
        except (errors.BaseError, OSError, ValueError, TimeoutError) as error:
            raise _failure_of(self._name, error) from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            advice = "check its options and variables, such as the region and the endpoint"
            raise StoreRefused(f"{self._name}: obstore failed ({_cause_of(error)}); {advice}") from None


def _failure_of(name: str, error: BaseException) -> StoreFailed:
    cause = _cause_of(error)
    if cause in NO_BUCKET:
        return StoreRefused(f"{name} does not exist: create the bucket first, or check its name and the endpoint")
    if _FOR_CREDENTIALS.search(str(error)):
        return StoreRefused(f"{name}: no credentials were found in the environment; set them ({cause})")
    if _REFUSED.search(str(error)):
        advice = "set its credentials in the environment, and check what they allow"
        return StoreRefused(f"{name} refuses the credentials ({cause}); {advice}")
    return StoreFailed(f"{name} failed: {cause}")


def _lacks(error: BaseException) -> bool:
    """Whether a store's answer says that it does not know the condition of a put."""
    return _code_of(error) == "NotImplemented" or "501 Not Implemented" in str(error)


def _check_values(name: str, prefix: str, options: Mapping[str, str]) -> None:
    """Refuse values at which obstore would panic. Raises StoreRefused; values are not shown, for they may be secret."""
    of_environment = {key: value for key, value in os.environ.items() if key.startswith(prefix)}
    for key, value in {**of_environment, **options}.items():
        if _ENDPOINT.fullmatch(key) and not re.match(r"https?://[^/\s]", value):
            raise StoreRefused(f"{name} cannot be opened: {key} is no URL such as https://host:port")
        if _IN_HEADERS.fullmatch(key) and re.search(r"\s", value):
            raise StoreRefused(f"{name} cannot be opened: {key} has a space or a line break in it; remove it")


def _opened(
    url: str, name: str, options: Mapping[str, str], of_client: Mapping[str, str], patience: Patience
) -> Opened:
    """The opened store. Raises StoreRefused."""
    from obstore.store import from_url  # noqa: PLC0415  # It is an extra.

    of_store = {key: value for key, value in options.items() if key not in CLIENT_OPTIONS}
    retry = {"max_retries": patience.retries, "retry_timeout": timedelta(seconds=patience.retry_s)}
    opened: Callable[..., Opened] = from_url
    try:
        return opened(
            url,
            config=of_store,
            client_options=of_client,
            retry_config=retry | {"backoff": {"init_backoff": timedelta(milliseconds=100)}},
        )
    except BaseException as error:
        if not isinstance(error, Exception) and not _is_panic(error):
            raise
        given = f" with the options {', '.join(sorted(options))}" if options else ""
        raise StoreRefused(f"{name} cannot be opened{given}: {_cause_of(error, options)}") from None


def _imported() -> ModuleType:
    try:
        import obstore  # noqa: PLC0415  # It is an extra.
    except ImportError:
        raise StoreRefused("object stores need the package obstore; run pip install 'quire[backup]'") from None
    return obstore


def _is_panic(error: BaseException) -> bool:
    """Whether it is what obstore raises for a fault of its own, which is no Exception."""
    return type(error).__name__ == "PanicException"


def _code_of(error: BaseException) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _cause_of(error: BaseException, secrets: Mapping[str, str] | None = None) -> str:
    """What an error of obstore says in one line, without the structures that it adds, and without values of options."""
    text = str(error).partition("\n\nDebug source:")[0]
    text = _code_of(error) or " ".join(text.split())
    text = _BOILERPLATE.sub("", _ATTEMPTS.sub(r"\1 \2: ", text))
    for value in (secrets or {}).values():
        text = text.replace(value, "...") if len(value) > 3 else text
    return text[:CAUSE_CHARACTERS].rstrip(": ") or type(error).__name__


def _shown(url: str) -> str:
    """A URL without user, password and query. Raises StoreRefused: it is none."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise StoreRefused(f"no place for a backup: {str(error).lower()}; give {FORMS}") from None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
