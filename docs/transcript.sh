#!/usr/bin/env bash
# docs/transcript.sh [--write]
# Runs the README's quick start, but for the first command, and prints what a terminal shows; --write puts it into the
# README. Wants `millrace` in the path, /dev/fuse, root or fusermount3, and ports 2049 and 20049. The temporary
# directory in which it works is shown as /home/user. Leaves nothing behind.
set -euo pipefail -m
root=$(cd "$(dirname "$0")/.." && pwd)
dir=$(mktemp -d)
end() {
  mountpoint --quiet "$dir/mnt" && umount "$dir/mnt"
  jobs -p | xargs -r kill 2>/dev/null
  rm -rf "$dir"
}
trap end EXIT
cd "$dir"
cp "$root/Cargo.toml" .

# The commands of the section's first block, and some to look at what came of them.
commands() {
  sed -n '/^## Quick start/,$p' "$root/README.md" | sed -n '/^```sh$/,/^```$/p' | sed -n '3,5p'
  printf '%s\n' 'df -h mnt' 'millrace tree nfs://127.0.0.1/data' 'umount mnt && kill %1'
}
run() {
  while IFS= read -r command <&3; do
    printf '$ %s\n' "$command"
    eval "$command" 2>&1
    # A server in the background prints when it is ready. After `kill`, the shell waits for the server to end.
    case $command in *'&') sleep 2 ;; *'kill %1') wait ;; esac
  done 3< <(commands)
}
run >"$dir/shown"
sed "s|$dir|/home/user|g" "$dir/shown" >"$dir/transcript"
if [ "${1:-}" != --write ]; then
  cat "$dir/transcript"
  exit
fi
awk -v transcript="$dir/transcript" '
  /<!-- end -->/ { inside = 0 }
  !inside { print }
  /<!-- made by docs\/transcript.sh -->/ {
    inside = 1
    print "```text"
    while ((getline line < transcript) > 0) print line
    print "```"
  }' "$root/README.md" >"$dir/README.md"
cat "$dir/README.md" >"$root/README.md"
