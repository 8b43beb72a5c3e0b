"""Call trees -> a Weave project, over Weave's own HTTP protocol.

    pipeline   the steps in order: find runs, resolve targets, read, encode, ask, send, count
    sender     the threads that ask and send
    target     where to and as whom, as W&B users have set it up
    plan       which calls go into which request
    payload    one trajectory -> the bytes of its calls
    heavy      what is too large for a row: files with a preview in place
    media      what a call keeps in side files: images and files of the project
    encodings  recorded bytes as PNG, WAV, NPY
    contents   files as Weave's own Content objects
    ops        the objects that calls refer to by their op name
    client     the routes, and what to do about every kind of answer
    transport  one request; how long to wait before the next
    result     numbers that add up

Invariants
1. Ids and times are the recorded ones: uploading again is recognised, not stored twice.
2. The server is asked before calls are sent, and again after every answer that was lost on the way.
3. Every recorded call is counted exactly once: as sent, skipped (why) or failed (in whose words).
4. A call is sent when it can no longer change: ended, or left by a process that is gone.

Importing this package imports neither weave nor requests; `pipeline` does.
"""
