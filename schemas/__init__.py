"""The contract between the recorder and every reader: what lies on disk and what a line means.

    runs/<experiment>/<writer>.<index>.jsonl        open segment: plain JSONL, appended line by line
    runs/<experiment>/<writer>.<index>.jsonl.zst    sealed segment: standard zstd, published by rename

Invariants
1. A file has one writer, a process; a writer writes only files of its own.
2. A line counts once its newline is on disk. A record never spans lines.
3. The first line of every segment is a `header` that says whose it is.
4. A sealed segment and the raw one it was made from hold the same records; they count once.
5. Readers take no locks and change nothing.

`docs/format.md` is the full description; `files` owns every name, `lines` the form of a line, `values` how Python
values look in it, `records` what a parsed record offers, `errors` the exceptions.
"""
