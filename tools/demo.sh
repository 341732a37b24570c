#!/bin/sh
# `./cairn demo`: a server on a free port, a conversation with it, and what happens at each step. The programs must be
# built.
set -eu
cd "$(dirname "$0")/.."
bin=build/release/service
work=$(mktemp -d)
mkfifo "$work/pipe"
server=
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null || true; fi; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
trap 'exit 141' PIPE  # nobody reads any more

say() {
  if [ -t 1 ]; then printf '\n\033[1m%s\033[0m\n' "$*"; else printf '\n%s\n' "$*"; fi
}

type_in() {  # a command as a person would type it
  printf '$ cairnctl'
  for word in "$@"; do
    case $word in *[!A-Za-z0-9_.:/=-]*) printf ' "%s"' "$word" ;; *) printf ' %s' "$word" ;; esac
  done
  printf '\n'
}

# Shows a cairnctl command and runs it; its output goes to the screen and to $work/out.
ctl() {
  type_in "$@"
  tee "$work/out" <"$work/pipe" &
  screen=$!
  status=0
  "$bin/cairnctl" --address "$address" "$@" >"$work/pipe" 2>"$work/usage" || status=$?
  wait "$screen"
  cat "$work/usage"
  return "$status"
}

# Likewise, but of the output only the lines that begin with these words are shown.
ctl_showing() {
  words=$1
  shift
  type_in "$@"
  "$bin/cairnctl" --address "$address" "$@" >"$work/out"
  grep -E "^($words) " "$work/out"
}

same() {  # FILE FILE WHAT
  cmp -s "$1" "$2" || { echo "cairn: $3 differs, which is a bug" >&2; exit 1; }
  echo "=> $3 is the same, byte for byte ($(wc -c <"$1") bytes)."
}

start_server() {
  echo "$ cairnd --listen 127.0.0.1:0 --device-memory 192MiB --host-memory 192MiB --disk-dir DIR --disk-memory 1GiB"
  : >"$work/server"  # what an earlier one said is not to be taken for this one's
  "$bin/cairnd" --listen 127.0.0.1:0 --device-memory 192MiB --host-memory 192MiB --disk-dir "$work/data" \
    --disk-memory 1GiB >"$work/server" 2>"$work/log" &
  server=$!
  waited=0
  until grep -q '^listening on ' "$work/server"; do
    kill -0 "$server" 2>/dev/null || { cat "$work/log" >&2; exit 1; }
    sleep 0.1
    waited=$((waited + 1))
    [ $((waited % 20)) -ne 0 ] || echo "preparing the model, $((waited / 10)) s" >&2
  done
  address=$(sed -n 's/^listening on //p' "$work/server")
  "$bin/cairnctl" --address "$address" health --wait 30 >/dev/null
}

say "1. The server starts, says what it serves and how much each tier can hold, and listens."
start_server
cat "$work/server"

say "2. A session is a conversation that the server keeps: tokens, sampling, and the KV cache of what was read."
ctl_showing "name|tokens" session create demo -m "system:You are a helpful guide. Answer in two sentences." --temperature 0

say "3. First turn. All of the prompt is new to the model; the last line says what the answer cost."
ctl session decode demo -m "user:Why do rivers meander?" -n 60

say "4. Second turn. The conversation so far is still on the device: only the new message is computed."
ctl session decode demo -m "user:And why is the sea salty?" -n 60

say "5. A fork shares the blocks of the original and goes its own way; the original does not change."
ctl_showing "name|tokens|KV on|forked from" session fork demo demo-fork
ctl session decode demo-fork -m "user:Say that in other words." -n 40

say "6. Truncate rewinds: the fork forgets all but its first tokens, and may be asked something else."
ctl_showing "name|tokens" session truncate demo-fork 32

say "7. A dropped stream is resumed by asking from the next position: what was made is replayed, not made again."
ctl session append demo -m "user:Tell me a story about a river."
start=$(sed -n 's/.* appended, \([0-9]*\) in all/\1/p' "$work/out")
ctl session decode demo -n 48
cp "$work/out" "$work/whole"
echo "The first 20 tokens were seen, say, and then the connection broke:"
ctl session read demo --start "$start" --count 20
head -c -1 "$work/out" >"$work/seen"
ctl session decode demo --start $((start + 20)) -n 28
cat "$work/seen" "$work/out" >"$work/resumed"
same "$work/whole" "$work/resumed" "The answer in two parts"

say "8. Tokens are the truth, the cache is not: with every cached block gone the same answer is computed again."
ctl_showing "name|tokens" session truncate demo "$start"
ctl_showing "KV on" session suspend demo --tier absent
ctl cache clear
ctl session decode demo -n 48
same "$work/whole" "$work/out" "The answer"

say "9. A long document is read once. That takes a while: every token of it is new."
cat README.md CONTRIBUTING.md docs/ARCHITECTURE.md | head -c 20000 >"$work/document"
ctl_showing "name" session create reader
begin=$(date +%s%N)
"$bin/cairnctl" --address "$address" session append reader - <"$work/document" >"$work/out"
ctl session decode reader -n 1
read_ms=$((($(date +%s%N) - begin) / 1000000))

say "10. The session is suspended to disk, and the server is killed without a warning and started again."
ctl_showing "KV on" session suspend reader --tier disk
echo "$ kill -9 SERVER"
kill -KILL "$server"
wait "$server" 2>/dev/null || true
start_server
grep -E '^(disk|sessions) ' "$work/server"
ctl session list

say "11. The session answers. Its blocks come from the disk; only what is new is computed."
ctl session decode reader -m "user:What is this text about?" -n 24
from_disk=$(sed -n 's/.*disk \([0-9]*\).*/\1/p' "$work/usage")
first=$(sed -n 's/.*first token after //p' "$work/usage")
[ -n "$from_disk" ] || { echo "cairn: nothing came from the disk, which is a bug" >&2; exit 1; }
echo "=> $from_disk tokens: 0 device, 0 host, $from_disk disk; the first word came after $first. Reading the document had taken" \
  "$read_ms ms."

say "12. What the server did."
ctl session list
ctl cache stats

say "13. SIGTERM: the server finishes what runs, and ends."
kill "$server"
status=0
wait "$server" || status=$?
server=
[ "$status" -eq 0 ] || { echo "cairn: the server ended with $status" >&2; exit 1; }
echo "The server has stopped. Next: ./cairn serve in one terminal, ./cairn chat in another."
