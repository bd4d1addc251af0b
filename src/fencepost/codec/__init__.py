"""Arguments, results, errors and keys of jobs as bytes and text.

* `arguments`: a handler's keyword arguments as JSON, by name, checked by the very decoder the worker uses.
* `outcome`: what a run leaves behind (result, error text), which must never fail a job that has done its work.
* `identity`: keys and fingerprints that tell whether two requests are the same.
* `spec`: a whole job as a line of JSON, as the outbox and the ledger keep it.
* `checks`: what JSON would change silently, and where in the data it is.
"""

from .arguments import PAYLOAD_LIMIT, ArgumentsCodec
from .identity import canonical_key, request_fingerprint
from .outcome import RESULT_LIMIT, decode_result, encode_result, encode_result_safely, error_text, harmless_text
from .spec import after_waiting, spec_from_text, spec_to_text

__all__ = [
    "PAYLOAD_LIMIT",
    "RESULT_LIMIT",
    "ArgumentsCodec",
    "after_waiting",
    "canonical_key",
    "decode_result",
    "encode_result",
    "encode_result_safely",
    "error_text",
    "harmless_text",
    "request_fingerprint",
    "spec_from_text",
    "spec_to_text",
]
