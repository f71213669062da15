# Draws docs/report.png: the first screen of the report of the table digits, which `make repro` writes.
page=results/digits/report/index.html
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
if [ -z "$browser" ]; then
    echo "docs/report.png is not drawn: it needs chromium"
elif [ ! -f "$page" ]; then
    echo "docs/report.png is not drawn: it needs $page; run 'make repro' first"
elif ! "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1300,1000 \
    --screenshot=docs/report.png "$page" >/dev/null 2>&1; then
    echo "docs/report.png is not drawn: $browser has failed"
else
    echo "docs/report.png: drawn from $page"
    # A palette takes a third of the space.
    python -c 'from PIL import Image; p = "docs/report.png"; Image.open(p).quantize(16).save(p, optimize=True)'
fi
