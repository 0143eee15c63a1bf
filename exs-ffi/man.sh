#!/usr/bin/env bash
# Makes the manual pages from the header, which is the manual: exs(7), and one page per
# function or family in section 3.
#
#   exs-ffi/man.sh OUT    into OUT/man3 and OUT/man7
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
out=${1:?usage: man.sh OUT}
mkdir -p "$out/man3" "$out/man7"

# The line that whatis(1) shows. A function without one is an error: it would have no page.
awk -v out="$out" -v date=2026-11-21 '
BEGIN {
    about["exs_init"] = "start Extended Sockets"
    about["exs_qcreate"] = "make an event queue"
    about["exs_qdelete"] = "end an event queue"
    about["exs_qmodify"] = "read or change an attribute of an event queue"
    about["exs_qdequeue"] = "take events off a queue"
    about["exs_mregister"] = "register memory"
    about["exs_mderegister"] = "end a registration of memory"
    about["exs_socket"] = "make an extended socket"
    about["exs_bind"] = "give a socket its address"
    about["exs_listen"] = "take connections"
    about["exs_connect"] = "connect a socket"
    about["exs_accept"] = "accept a connection"
    about["exs_shutdown"] = "end a direction of a connection"
    about["exs_close"] = "close a socket"
    about["exs_getsockname"] = "addresses of a socket"
    about["exs_fcntl"] = "flags and copies of a descriptor"
    about["exs_getsockopt"] = "options of a socket"
    about["exs_send"] = "send bytes, or a message"
    about["exs_recv"] = "receive bytes, or a message"
    about["exs_sendmsg"] = "send a message in pieces"
    about["exs_recvmsg"] = "receive a message into pieces"
    about["exs_sendfile"] = "send memory and files"
    about["exs_poll"] = "wait for readiness, once"
    about["exs_cancel"] = "ask operations to end"
    about["exs_strerror"] = "what went wrong last"
    about["exs_version"] = "the version of the library"
    about["exs_qfd"] = "the descriptor of an event queue"
    about["exs_export"] = "open memory to the peer"
    about["exs_fetch_add"] = "add to a word of remote memory in one step"
    about["exs_compare_swap"] = "compare and replace a word of remote memory in one step"
    about["exs_revoke"] = "close exported memory to the peer"
    about["exs_remote_info"] = "what a descriptor of exported memory says"
    about["exs_read"] = "read the memory of the peer"
    about["exs_write"] = "write the memory of the peer"
    about["exs_send_batch"] = "post several sends in one call"
    about["exs_recv_batch"] = "post several receives in one call"
    about["exs_connect_host"] = "connect a socket to a host by its name"
    about["exs_mregister_dmabuf"] = "register memory of another device"
    about["exs_counters"] = "figures to tune with"
    about["exs_epoll_ctl"] = "register a socket in an epoll set"
    about["exs_epoll_wait"] = "wait for events of an epoll set with sockets"
    about["exs_offer_stats"] = "offer the figures of the process to readers"
}
function quote(s) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    sub(/^[.\x27]/, "\\\\\\&&", s)
    return s
}
# The text of a comment, without its frame.
function bare(s) {
    sub(/^ ?\/\* ?/, "", s)
    sub(/ ?\*\/$/, "", s)
    sub(/^ \* ?/, "", s)
    return s
}
# Prose is filled; what is indented is a table, and stays as it is.
function prose(file, text,   n, i, lines, table) {
    sub(/^\n+/, "", text)
    n = split(text, lines, "\n")
    table = 0
    for (i = 1; i <= n; i++) {
        if (lines[i] ~ /^  / && !table) { print ".PP\n.nf" > file; table = 1 }
        if (lines[i] !~ /^  / && table) { print ".fi" > file; if (lines[i] != "") print ".PP" > file; table = 0 }
        if (lines[i] == "") { if (i < n && lines[i + 1] !~ /^  / && lines[i + 1] != "") print ".PP" > file; continue }
        if (i == 1 && lines[i] ~ /^----/) continue
        print quote(lines[i]) > file
    }
    if (table) print ".fi" > file
}
function code(file, text,   n, i, lines) {
    print ".nf" > file
    n = split(text, lines, "\n")
    for (i = 1; i <= n; i++) if (lines[i] != "" || i < n) print quote(lines[i]) > file
    print ".fi" > file
}
function head(file, title, section) {
    printf ".\\\" Made from <sys/exs.h> by man.sh: change that.\n" > file
    printf ".TH %s %s %s \"EXS 1.0\" \"Extended Sockets\"\n", title, section, date > file
}
function page(   name, file, i, list) {
    name = names[1]
    if (!(name in about)) { print "man.sh: no line about " name > "/dev/stderr"; failed = 1; return }
    file = out "/man3/" name ".3"
    list = name
    for (i = 2; i <= count; i++) list = list ", " names[i]
    head(file, toupper(name), 3)
    print ".SH NAME\n" list " \\- " about[name] > file
    print ".SH SYNOPSIS" > file
    code(file, "#include <sys/exs.h>\n\n" block)
    print ".SH DESCRIPTION" > file
    prose(file, comment)
    if (extension) print ".SH STANDARDS\nDefined by this library; no part of the Extended Sockets API (ES\\-API)." > file
    print ".SH ERRORS\nThose that all calls have in common are in\n.BR exs (7)." > file
    print ".SH SEE ALSO\n.BR exs (7)" > file
    close(file)
    pages = pages " " name
    for (i = 2; i <= count; i++) {
        print name, names[i] > (out "/aliases")
    }
}
function flush_block(   is_call) {
    if (block == "") return
    if (count > 0) page()
    else if (comment !~ /SPDX/ && comment != "" && block ~ /[^ \n]/ && comment !~ /How calls behave/) {
        types = types "\n/* " comment " */\n" block
    }
    block = ""; count = 0; comment = ""
}
/^#ifdef EXS_EXTENSIONS/ { flush_block(); extension = 1; next }
/^#endif/ { flush_block(); next }
/^\/\*/ {
    flush_block()
    comment = ""
    in_comment = 1
}
in_comment {
    line = bare($0)
    if (line ~ /^---- How calls behave/) how = 1
    if (line !~ /^-+$/) comment = comment (comment == "" ? "" : "\n") line
    if ($0 ~ /\*\/$/) {
        in_comment = 0
        if (how) { behave = comment; sub(/^[^\n]*\n/, "", behave); how = 0; comment = "" }
        else if (comment ~ /^----/) { comment = "" }
    }
    next
}
/^(#ifdef|#if |#include|extern|}$|#ifndef)/ && block == "" { next }
{
    if ($0 == "" && block == "") next
    if (match($0, /^(int|const char \*|exs_[qm]handle_t) ?\*?exs_[a-z_]+\(/)) {
        name = $0
        sub(/\(.*/, "", name)
        sub(/.*[ *]/, "", name)
        names[++count] = name
    }
    block = block $0 "\n"
}
END {
    flush_block()
    file = out "/man7/exs.7"
    head(file, "EXS", 7)
    print ".SH NAME\nexs \\- Extended Sockets: asynchronous sockets over RDMA, or over a software RNIC" > file
    print ".SH SYNOPSIS" > file
    code(file, "#include <sys/exs.h>\n\ncc program.c $(pkg-config --cflags --libs exs)")
    print ".SH DESCRIPTION" > file
    print "A call that posts an operation returns at once, and an event on a queue says how it ended." > file
    print "Memory may be registered ahead, so that RDMA devices read and write it without a copy." > file
    print "The names are those of the Extended Sockets API (ES\\-API, The Open Group, 2005)." > file
    print ".SH BEHAVIOUR" > file
    prose(file, behave)
    print ".SH ENVIRONMENT\nThe page on tuning in the guide of EXS lists all variables. Among them are" > file
    print ".PP\n.nf" > file
    print "EXS_TRANSPORT   auto, shm, soft or verbs: which transports sockets may use" > file
    print "EXS_DEVICE      the one RDMA device to use" > file
    print "EXS_WAIT        busy, notify or adaptive: how exs_qdequeue waits" > file
    print "EXS_KERNEL_IO   auto, uring or readiness: how connect and accept wait on kernel sockets" > file
    print ".fi" > file
    print ".SH DATA TYPES" > file
    code(file, types)
    print ".SH SEE ALSO" > file
    n = split(pages, list, " ")
    for (i = 1; i <= n; i++) print ".BR " list[i] " (3)" (i < n ? "," : "") > file
    close(file)
    exit failed
}' "$here/include/sys/exs.h"

while read -r name alias; do ln -sf "$name.3" "$out/man3/$alias.3"; done < "$out/aliases"
rm -f "$out/aliases"
