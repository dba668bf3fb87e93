#!/usr/bin/env python3
"""The work itself, which knows nothing of queues: makes a picture small.

A job is JSON: {"image": "cat.png", "width": 128, "out": "small/cat.png"}.

As a program it reads a job from standard input. Exit status: 0 when it is done; 65 when it can never be done; 75 when it may
be worth another try.
"""

import json
import os
import sys
from pathlib import Path

from PIL import Image, UnidentifiedImageError

CANNOT_BE_DONE, TRY_AGAIN = 65, 75


class Hopeless(Exception):
    """Another try would end in the same way."""


def resize(job: bytes):
    """Does a job. Raises `Hopeless` if it never can be done, and whatever else if it may work another time."""
    try:
        job = json.loads(job)
        source, out, width = Path(job["image"]), Path(job["out"]), int(job["width"])
    except (ValueError, KeyError, TypeError) as error:
        raise Hopeless(f"this is no job: {error!r}") from error
    try:
        with Image.open(source) as image:
            image.thumbnail((width, image.height))
            small = image.copy()
    except UnidentifiedImageError as error:
        raise Hopeless(f"{source} is no picture") from error
    # A job may be done twice, so its result appears at once or not at all, and is the same each time.
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
