#!/usr/bin/env bash
# A worker of a share group with Mosquitto's mosquitto_sub in a pipe: worker.sh HOST PORT CLIENT_ID FACTOR.
#
# mosquitto_sub acknowledges a message when it has written the message to the pipe. The pipe holds 64 KiB, so thousands of
# short messages are acknowledged before their work begins. Further arguments: "concurrency=N" and "receive-maximum=N"
# tell the broker so, at 5.0. A message's payload is "NUMBER SENT_US WORK_US"; its work takes FACTOR times WORK_US. Prints
# "NUMBER BEGUN_US" when a message's work begins.
set -euo pipefail

host=$1 port=$2 id=$3 factor=$4
told=()
for argument in "${@:5}"; do
    told+=(-V 5)
    case $argument in
        receive-maximum=*) told+=(-D connect receive-maximum "${argument#*=}") ;;
        *) told+=(-D connect user-property "${argument%%=*}" "${argument#*=}") ;;
    esac
done
mosquitto_sub -h "$host" -p "$port" -i "$id" -q 1 -t '$share/g/work' "${told[@]}" |
    while read -r number _ work; do
        echo "$number ${EPOCHREALTIME/[.,]/}"
        sleep "$(printf '%d.%06d' $((work * factor / 1000000)) $((work * factor % 1000000)))"
    done
