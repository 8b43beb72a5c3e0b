# Each target says in one word what it is for; `.ci/run` is what a change must pass.
.PHONY: check test docs demo ci bench soak clean

check:  ## lint, format, types
	.ci/check

test:  ## the test command of README.md
	.ci/test

docs:  ## docs/cli.md from the code
	.venv/bin/python -c "from verl_trace.cli import app; from verl_trace.commands.reference import reference; print(reference(app), end='')" > docs/cli.md

demo:  ## record, upload to a local Weave server, read back
	.venv/bin/verl-trace demo

ci:  ## all of it, as CI does
	.ci/run

bench:  ## hot path, event loop, memory, disk, start, replaying, reading, against peers where they are installed: one table, a quarter of an hour
	.venv/bin/python benchmarks/run_all.py

soak:  ## kills, storms and ten million calls, an hour and a half; SOAK_KILLS=2000, SOAK_STORMS=100 for more
	.venv/bin/pytest -q -s -m soak tests
	FUZZ_SECONDS=120 .ci/fuzz

clean:  ## what builds and tests leave behind; environments in .venv and .ci-envs stay
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -not -path './.ci-envs/*' -prune -exec rm -rf {} +
