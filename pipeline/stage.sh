# Runs a stage of dvc.yaml, or says why it cannot.
if ! command -v pfl >/dev/null; then
    echo "dvc repro: the environment is not activated; run 'source .venv/bin/activate' first, or 'make repro'" >&2
    exit 2
fi
exec pfl "$@"
