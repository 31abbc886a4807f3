"""What JSON forbids but profilers have written, put right, and counted."""

import re
from collections import Counter

STRING = rb'"(?:[^"\\]++|\\.)*+"'
HEX = rb"[0-9a-fA-F]{2}"
ESCAPE = rb'\\(?:["\\/bfnrt]|u(?![dD][89a-fA-F])%b%b|u[dD][89abAB]%b\\u[dD][c-fC-F]%b)' % (HEX, HEX, HEX, HEX)
"""The escapes that JSON knows; those of surrogates only in pairs."""

CLEAN = re.compile(
    rb'(?:[^"eEfiInNt]++|"(?:[^"\\\0-\x1f]++|%b)*+"|true|false|null|[eE][-+]?\d{1,2}(?!\d))*+' % ESCAPE, re.DOTALL
)
"""Text in which nothing is to repair."""

UNCLEAN = re.compile(rb"(?P<string>%b)|(?P<number>(?i:nan|inf(?:inity)?)\b|[eE]\+?\d{3,})" % STRING, re.DOTALL)
"""What `CLEAN` ends before: a string with something that JSON does not allow, or (the end of) a number that is none."""

UNFIT = re.compile(
    rb"(?P<known>%b)|(?P<half>\\u[dD][89a-fA-F]%b)|(?P<escape>\\)|(?P<control>[\0-\x1f])" % (ESCAPE, HEX), re.DOTALL
)
"""Within a string: what JSON knows; and what not: halves of surrogate pairs, other escapes, and raw control
characters."""

NOT_UTF8 = "bytes that are not UTF-8 were replaced"
NOT_A_NUMBER = "NaN or infinite values were read as missing"
HALF_PAIR = "halves of surrogate pairs were replaced"

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


def repair(text: bytes, counts: Counter[str]) -> bytes:
    """Make JSON of a piece of text that is JSON but for what this module knows; adds to `counts` what was replaced.

    Bytes that are not UTF-8 become U+FFFD, numbers that are not finite null, and what a backslash precedes that JSON
    does not know is kept with the backslash, as are raw control characters.
    """
    if not is_utf8(text):
        # What the text itself spells as U+FFFD is not replaced.
        before = text.count(REPLACEMENT)
        text = text.decode(errors="replace").encode()
        counts[NOT_UTF8] += text.count(REPLACEMENT) - before
    parts = []
    position = 0
    while True:
        end = CLEAN.match(text, position).end()
        clean, found = text[position:end], UNCLEAN.match(text, end)
        if found is None:
            # At the end, or before what can't be repaired.
            position = end + 1
            parts.append(text[position - 1 - len(clean) : position])
        elif found["string"]:
            position = found.end()
            parts += [clean, _repair_string(found["string"], counts)]
        else:
            position = found.end()
            parts += [clean.rstrip(b"+-.0123456789"), b"null"]
            counts[NOT_A_NUMBER] += 1
        if position >= len(text):
            return b"".join(parts)


def is_utf8(text: bytes) -> bool:
    """Whether all of a text is UTF-8."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _repair_string(string: bytes, counts: Counter[str]) -> bytes:
    def fix(found: re.Match[bytes]) -> bytes:
        if found["known"]:
            return found[0]
        if found["half"]:
            counts[HALF_PAIR] += 1
            return rb"\ufffd"
        return rb"\\" if found["escape"] else rb"\u%04x" % ord(found[0])

    return UNFIT.sub(fix, string)
