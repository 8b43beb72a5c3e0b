"""W&B's offline runs beside a recording: found, read without importing wandb's client, matched, synced by `wandb sync`.

`log` reads the records of a `.wandb` file, `offline` finds and describes runs, `match` says which belong to a recorded
run, `sync` has wandb's own command upload them, `extent` makes a log fit for it that was cut off or is still written,
`copies` finds folders that are one.
"""
