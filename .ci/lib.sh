# Shared by the scripts beside this file; sourced, with the working directory at the root of the checkout.

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
ENVS="${VERL_TRACE_CI_ENVS:-$PWD/.ci-envs}"
PYTHON="${PYTHON:-python3}"

# environment NAME INSTALL…: a venv in $ENVS/NAME in which each INSTALL (one `pip install` argument line) was run in order.
# It is kept, and made anew when the lines or the Python change, or when it was never finished.
environment() {
    local name=$1 folder="$ENVS/$1" wanted line
    shift
    wanted=$("$PYTHON" -VV; printf '%s\n' "$@")
    if [ "$(cat "$folder/.installed" 2>/dev/null)" = "$wanted" ]; then
        echo "environment $name: kept from an earlier run"
        return
    fi
    rm -rf "$folder"
    "$PYTHON" -m venv "$folder"
    for line in "$@"; do
        echo "environment $name: pip install $line"
        # shellcheck disable=SC2086  # a line is several arguments
        "$folder/bin/pip" install -qq $line
    done
    printf '%s' "$wanted" >"$folder/.installed"
}

# copy_checkout FOLDER: the files of the checkout, changes included, without environments and what builds left.
copy_checkout() {
    mkdir -p "$1"
    tar -c --exclude='./.git' --exclude='./.venv' --exclude='./.ci-envs' --exclude='./build' --exclude='./dist' \
        --exclude='./*.egg-info' --exclude='__pycache__' --exclude='./runs' --exclude='.mypy_cache' . | tar -x -C "$1"
}
