#!/usr/bin/env bash
# A Fencepost worker in plain shell: bash, curl and jq.
#
#   FENCEPOST_API=http://127.0.0.1:8000 FENCEPOST_TOKEN=fp_… ./worker.sh
#
# One job at a time. A job of kind `word_count` is done by the function do_word_count, which gets the arguments as JSON on
# its input and prints the result as JSON; its exit status says whether it went well.
set -u

API=${FENCEPOST_API:-http://127.0.0.1:8000}
TOKEN=${FENCEPOST_TOKEN:-}
QUEUE=${FENCEPOST_QUEUES:-shell}
LEASE_S=${FENCEPOST_LEASE_S:-30} # whole seconds
WORKER=${FENCEPOST_WORKER:-shell-$$}
scratch=$(mktemp -d)
stopping=
trap 'rm -rf "$scratch"' EXIT
trap 'stopping=1' TERM INT

do_word_count() { jq -c '.text | [splits("\\s+")] | map(select(. != "")) | length'; }
do_nap() { sleep "$(jq -r '.seconds // 1')" && echo '"rested"'; }

kinds=$(declare -F | sed -n 's/^declare -f do_//p' | jq -Rnc '[inputs]')
log() { jq -nc --arg event "$1" --arg worker "$WORKER" --argjson more "${2:-{\}}" '{$event, $worker} + $more'; }

# Milliseconds. A lease counts from before the call that gave it was sent, less a tenth for clocks that drift.
now() { echo $((${EPOCHREALTIME//[!0-9]/} / 1000)); }

# call PATH BODY [SECONDS]: the answer's body on the output; 0 = done, 1 = refused, 2 = no answer, or ask again later.
call() {
	local status body=$scratch/answer.$BASHPID # the keeper calls at the same time
	status=$(curl -sS --max-time "${3:-30}" -o "$body" -w '%{http_code}' -X POST "$API$1" -H 'Content-Type: application/json' \
		${TOKEN:+-H "Authorization: Bearer $TOKEN"} --data-binary "$2" 2>"$scratch/error") || return 2
	cat "$body"
	case $status in 2??) return 0 ;; 429 | 502 | 503 | 504) return 2 ;; *) return 1 ;; esac
}

# As call; what got no answer is sent again, because every call may be sent twice.
insist() {
	local code wait=1
	while true; do
		call "$@"
		code=$?
		[[ $code != 2 ]] && return "$code"
		sleep "$wait"
		wait=$((wait < 8 ? wait * 2 : 8))
	done
}

# Renew the lease every third of it. A run that is not ours any more is stopped, with all programs it has started; so is
# one that may be lost because the service gave no answer.
keep() {
	local run=$1 work=$2 until=$(($3 + LEASE_S * 900)) answer outcome body third sent_at
	third=$(jq -n "$LEASE_S / 3")
	body=$(jq -nc --argjson run "$run" --arg worker "$WORKER" --argjson lease_s "$LEASE_S" '{$worker, $lease_s, runs: [$run]}')
	while sleep "$third" && kill -0 "$work" 2>/dev/null; do
		sent_at=$(now)
		if ! kill -0 "$$" 2>/dev/null; then # the worker was killed: nobody would report how the run ends
			kill -- "-$work" 2>/dev/null
			return
		fi
		if answer=$(call /v1/renew "$body" "$third"); then
			outcome=$(jq -r '.runs[0].outcome' <<<"$answer")
			if [[ $outcome == ok ]]; then
				until=$((sent_at + LEASE_S * 900))
				continue
			fi
		elif (($(now) < until)); then
			continue
		else
			answer='{"runs": [{"outcome": "deadline"}]}'
		fi
		log stop "$(jq -c --argjson run "$run" '$run + .runs[0]' <<<"$answer")"
		kill -- "-$work" 2>/dev/null
		return
	done
}

# settle PATH RUN FIELDS: report how a run ended; the fence decides whether it still counts.
settle() {
	local answer body
	body=$(jq -nc --argjson run "$2" --arg worker "$WORKER" --argjson more "$3" '$run + {$worker} + $more')
	if answer=$(insist "$1" "$body"); then
		log ended "$(jq -c --argjson run "$2" '$run + .' <<<"$answer")"
	else
		log refused "$(jq -nc --argjson run "$2" --arg text "$answer" '$run + {problem: ($text | fromjson? // $text)}')"
	fi
}

work() {
	local job=$1 claimed_at=$2 run kind work keeper code
	run=$(jq -c '{job_id, token, nonce}' <<<"$job")
	kind=$(jq -r .kind <<<"$job")
	log begin "$(jq -c '{job_id, token, kind, attempt}' <<<"$job")"
	set -m # each in a process group of its own: it ends with all it has started, and Ctrl-C reaches neither
	(jq -c .args <<<"$job" | "do_$kind" >"$scratch/result" 2>"$scratch/stderr") &
	work=$!
	keep "$run" "$work" "$claimed_at" &
	keeper=$!
	set +m
	while true; do # a signal ends `wait`, not the work
		wait "$work"
		code=$?
		kill -0 "$work" 2>/dev/null || break
	done
	kill -- "-$keeper" 2>/dev/null
	wait "$keeper" 2>/dev/null
	if [[ $code == 0 ]] && jq empty "$scratch/result" 2>/dev/null; then
		settle /v1/finish "$run" "$(jq -nc --slurpfile result "$scratch/result" '{result: $result[0]}')"
	else
		settle /v1/retry "$run" "$(jq -nc --arg code "$code" --rawfile text "$scratch/stderr" \
			'{error: {class: "ExitStatus", message: ("exit status " + $code + "\n" + $text)[:4000]}}')"
	fi
}

log serving "$(jq -nc --arg api "$API" --arg queue "$QUEUE" '{$api, $queue}')"
new_id() { od -An -N12 -tx1 /dev/urandom | tr -d ' \n'; }
id=$(new_id)
while [[ -z $stopping ]]; do # the same claim until it is answered: what it got is ours
	claim=$(jq -nc --arg worker "$WORKER" --arg queue "$QUEUE" --argjson lease_s "$LEASE_S" --argjson kinds "$kinds" \
		--arg id "$id" '{$worker, queues: ($queue | split(",")), $lease_s, wait_s: ([5, $lease_s / 3] | min), claim_id: $id, $kinds}')
	claimed_at=$(now)
	answer=$(call /v1/claims "$claim")
	case $? in
	0)
		while read -r job; do work "$job" "$claimed_at"; done < <(jq -c '.jobs[]' <<<"$answer")
		id=$(new_id)
		;;
	1)
		log claim_refused "$(jq -nc --arg text "$answer" '{problem: ($text | fromjson? // $text)}')"
		exit 1
		;;
	*)
		log again "$(jq -nc --arg api "$API" --rawfile why "$scratch/error" '{$api, $why}')"
		sleep 1
		;;
	esac
done
log stopped
