# shellcheck shell=bash
# For scripts that run one step after another and sum up (.ci/run, nightly.sh): sourced at the
# top of the repository.
#
#   step NAME MINUTES COMMAND...   runs one
#   finish_steps                   prints the table, and what was skipped, flaky or failed;
#                                  the script's status
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never} RUST_BACKTRACE=${RUST_BACKTRACE:-1}
summary=() failed=0
EXS_TEST_NOTES=$(mktemp)
export EXS_TEST_NOTES
trap 'rm -f "$EXS_TEST_NOTES"' EXIT

# A ready User Mode Linux with RDMA devices beside this checkout saves most of the
# test bed's time; without one it is QEMU.
uml=../shared/rdma-vm/linux-uml.xz
if [ -z "${RDMA_KERNEL-}" ] && [ -r "$uml" ]; then
    RDMA_KERNEL=uml:$(realpath "$uml")
    export RDMA_KERNEL
fi

# A step that hangs is killed, and fails. Status 77 says that it could not run here.
step() {
    local name=$1 minutes=$2 began=$SECONDS status=0 outcome
    shift 2
    printf '=== %s: %s\n' "$name" "$*"
    timeout --kill-after=30 "${minutes}m" "$@" || status=$?
    case $status in
        0) outcome=passed ;;
        77)
            outcome='skipped (see above)'
            printf 'skipped\tstep %s\tit cannot run here\n' "$name" >>"$EXS_TEST_NOTES"
            ;;
        124 | 137) outcome="FAILED: not done within $minutes minutes" ;;
        *) outcome="FAILED with status $status" ;;
    esac
    case $outcome in FAILED*) failed=$((failed + 1)) ;; esac
    summary+=("$(printf '%-9s %5d s  %s' "$name" $((SECONDS - began)) "$outcome")")
    printf '=== %s\n' "${summary[-1]}"
}

# Each note is a line KIND<tab>PLACE<tab>REASON; notes with the same reason are counted.
list_notes() {
    local kind count
    for kind in failed flaky skipped 'skipped in part'; do
        count=$(awk -F'\t' -v kind="$kind" '$1 == kind' "$EXS_TEST_NOTES" | wc -l)
        printf '=== %s: %d\n' "$kind" "$count"
        awk -F'\t' -v kind="$kind" '
            $1 == kind { n[$3]++; if (n[$3] <= 3) places[$3] = places[$3] (n[$3] > 1 ? ", " : "") $2 }
            END { for (why in n) printf "%4d  %s%s: %s\n", n[why], places[why], (n[why] > 3 ? ", ..." : ""), why }
        ' "$EXS_TEST_NOTES" | sort -k2
    done
}

finish_steps() {
    list_notes
    printf '=== all steps, %d s\n' "$SECONDS"
    printf '%s\n' "${summary[@]}"
    if [ "$failed" != 0 ]; then
        printf '%d of %d steps failed\n' "$failed" "${#summary[@]}"
        return 1
    fi
    printf 'no step of %d failed\n' "${#summary[@]}"
}
