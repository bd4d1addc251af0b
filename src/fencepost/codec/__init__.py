"""Arguments, results, errors and keys of jobs as bytes and text.

* `arguments`: a handler's keyword arguments as JSON, by name, checked by the very decoder the worker uses.
* `outcome`: what a run leaves behind (result, error text), which must never fail a job that has done its work.
* `identity`: keys and fingerprints that tell whether two requests are the same.
* `checks`: what JSON would change silently, and where in the data it is.
"""

from .arguments import PAYLOAD_LIMIT, ArgumentsCodec
from .identity import canonical_key, request_fingerprint
from .outcome import RESULT_LIMIT, decode_result, encode_result, encode_result_safely, error_text, harmless_text

__all__ = [
    "PAYLOAD_LIMIT",
    "RESULT_LIMIT",
    "ArgumentsCodec",
    "canonical_key",
    "decode_result",
    "encode_result",
    "encode_result_safely",
    "error_text",
    "harmless_text",
    "request_fingerprint",
]
