#!/usr/bin/env python3
"""The work itself, independent of queues: shrinks a picture.

A job is JSON: {"image": "cat.png", "width": 128, "out": "small/cat.png"}.

As a program it reads a job from standard input. Exit status: 0 if done; 65 if it can never be done; 75 if another
attempt may succeed.
"""

import json
import os
import sys
from pathlib import Path

from PIL import Image, UnidentifiedImageError

CANNOT_BE_DONE, TRY_AGAIN = 65, 75


class Hopeless(Exception):
    """Another attempt would fail in the same way."""


def resize(job: bytes):
    """Does a job. Raises `Hopeless` if it can never be done; any other exception means that another attempt may work."""
    try:
        job = json.loads(job)
        source, out, width = Path(job["image"]), Path(job["out"]), int(job["width"])
    except (ValueError, KeyError, TypeError) as error:
        raise Hopeless(f"not a job: {error!r}") from error
    try:
        with Image.open(source) as image:
            image.thumbnail((width, image.height))
            small = image.copy()
    except UnidentifiedImageError as error:
        raise Hopeless(f"{source} is not a picture") from error
    # A job may be done twice, so its result is written atomically and is the same each time.
    out.parent.mkdir(parents=True, exist_ok=True)
    unfinished = out.with_name(f".{os.getpid()}-{out.name}")
    small.save(unfinished)
    unfinished.replace(out)


def main():
    try:
        resize(sys.stdin.buffer.read())
    except Hopeless as error:
        print(error, file=sys.stderr)
        sys.exit(CANNOT_BE_DONE)
    except Exception as error:
        print(error, file=sys.stderr)
        sys.exit(TRY_AGAIN)


if __name__ == "__main__":
    main()
