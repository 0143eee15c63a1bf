//! `<sys/exs.h>` is what this crate says: the same constants, sizes and offsets; and it
//! compiles by itself, in C and C++, without a warning.

mod support;

use std::fmt::Write as _;
use std::mem::offset_of;

use exs_ffi::abi::*;
use support::{cc, fresh, has, home, run, source, strict};

/// (C expression, value in Rust), for a type and its members.
macro_rules! layout {
    ($out:ident, $($c:literal = $rust:ty { $($member:ident),* $(,)? })*) => {$(
        $out.push((format!("sizeof({})", $c), size_of::<$rust>() as i64));
        $out.push((
            format!("offsetof(struct {{ char c; {} t; }}, t)", $c),
            align_of::<$rust>() as i64,
        ));
        $($out.push((
            format!("offsetof({}, {})", $c, stringify!($member)),
            offset_of!($rust, $member) as i64,
        ));)*
    )*};
}

fn expected() -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> =
        CONSTANTS.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    layout!(all,
        "exs_ahandle_t" = AHandle {}
        "exs_qhandle_t" = std::ffi::c_int {}
        "exs_mhandle_t" = std::ffi::c_int {}
        "exs_iovec_t" = Iovec { exs_iov_base, exs_iov_len, exs_iov_mhandle, exs_iov_reserved }
        "exs_fdvec_t" = Fdvec { exs_fdv_fd, exs_fdv_reserved, exs_fdv_offset, exs_fdv_length }
        "exs_xferfile_t" = Xferfile { exs_xf_type, exs_xf_reserved, exs_xf_union }
        "exs_msghdr_t" = Msghdr {
            exs_msg_name, exs_msg_namelen, exs_msg_iovlen, exs_msg_iov, exs_msg_control,
            exs_msg_controllen, exs_msg_flags, exs_msg_reserved,
        }
        "exs_acceptaddr_t" = Acceptaddr { exs_aa_addr, exs_aa_addrlen, exs_aa_reserved }
        "exs_pollfd_t" = Pollfd {
            exs_pfd_fd, exs_pfd_events, exs_pfd_revents, exs_pfd_reserved,
        }
        "exs_signal_t" = Signal {
            exs_sig_action, exs_sig_signo, exs_sig_value, exs_sig_reserved,
        }
        "exs_timeout_t" = Timeout { exs_to_time, exs_to_flags, exs_to_reserved }
        "exs_evt_xfer_t" = EvtXfer { exs_evt_length, exs_evt_buffer, exs_evt_total }
        "exs_evt_xfermsg_t" = EvtXfermsg { exs_evt_length, exs_evt_msghdr, exs_evt_total }
        "exs_evt_xferfile_t" = EvtXferfile { exs_evt_length, exs_evt_xferfile }
        "exs_evt_accept_t" = EvtAccept {
            exs_evt_newsocket, exs_evt_reserved, exs_evt_acceptaddr,
        }
        "exs_evt_atomic_t" = EvtAtomic { exs_evt_length, exs_evt_place, exs_evt_old }
        "exs_evt_poll_t" = EvtPoll { exs_evt_revents, exs_evt_reserved, exs_evt_pollfd }
        "exs_event_t" = Event {
            exs_evt_type, exs_evt_errno, exs_evt_socket, exs_evt_flags, exs_evt_ahandle,
            exs_evt_union,
        }
        "exs_remote_t" = Remote { exs_remote_bytes }
        "exs_counters_t" = Counters {
            sends, recvs, one_sided, sent_direct, sent_indirect, sent_inline, received_direct,
            received_indirect, received_inline, read_bytes, write_bytes, copies, copied_bytes,
            adverts_sent, adverts_received, adverts_stale, credit_stalls, queue_stalls,
            messages_sent, messages_received, events, engine_runs, sleeps, in_flight,
            receives_added, receives_dropped,
        }
    );
    all
}

#[test]
fn layouts_and_constants_are_those_of_rust() {
    let dir = fresh("header-layout");
    let mut text = String::from(
        "#include <sys/exs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void)\n{\n",
    );
    for (c, _) in expected() {
        let _ = writeln!(text, "    printf(\"%lld\\n\", (long long)({c}));");
    }
    text.push_str("    return 0;\n}\n");
    let program = dir.join("layout");
    run(strict(&cc(), "c99").arg(source(&dir, "layout.c", &text)).arg("-o").arg(&program));
    let said = run(&mut std::process::Command::new(program));
    for ((c, rust), said) in expected().iter().zip(said.lines()) {
        assert_eq!(said, rust.to_string(), "{c}");
    }
    assert_eq!(said.lines().count(), expected().len());
}

/// A constant that the header has and Rust has not would escape the test above.
#[test]
fn rust_has_every_constant_of_the_header() {
    let header = std::fs::read_to_string(home().join("include/sys/exs.h")).unwrap();
    let known: Vec<&str> = CONSTANTS.iter().map(|(name, _)| *name).collect();
    let mut seen = 0;
    for line in header.lines().filter_map(|l| l.strip_prefix("#define ")) {
        let name = line.split_whitespace().next().unwrap_or("");
        if !["EXS_SYS_EXS_H", "EXS_EXTENSIONS", "EXS_VERSION"].contains(&name) {
            assert!(known.contains(&name), "{name} is in the header and not in abi.rs");
            seen += 1;
        }
    }
    assert_eq!(seen, known.len());
}

#[test]
fn the_header_compiles_by_itself_everywhere() {
    let dir = fresh("header-languages");
    let text =
        "#include <sys/exs.h>\n#include <sys/exs.h>\nint main(void) { return EXS_VERSION - 1; }\n";
    let (c, cpp) = (source(&dir, "alone.c", text), source(&dir, "alone.cc", text));
    let mut tried = 0;
    for (compiler, standards, file) in [
        ("gcc", ["c99", "c11", "gnu17"], &c),
        ("clang", ["c99", "c11", "gnu17"], &c),
        ("g++", ["c++11", "c++17", "gnu++20"], &cpp),
        ("clang++", ["c++11", "c++17", "gnu++20"], &cpp),
    ] {
        if !has(compiler) {
            continue;
        }
        for std in standards {
            run(strict(compiler, std).arg("-fsyntax-only").arg(file));
            run(strict(compiler, std).args(["-DEXS_STRICT", "-fsyntax-only"]).arg(file));
            tried += 1;
        }
    }
    assert!(tried >= 3, "no compiler at all");
}

/// C++ programs with the warnings that C++ programs turn on, uses of the macros among them.
#[test]
fn the_header_and_its_macros_are_clean_in_cpp() {
    let dir = fresh("header-cpp");
    let header = std::fs::read_to_string(home().join("include/sys/exs.h")).unwrap();
    let mut text = String::from("#include <sys/exs.h>\n\nint main()\n{\n    long long sum = 0;\n");
    let mut macros = 0;
    for define in header.lines().filter_map(|l| l.strip_prefix("#define ")) {
        let mut words = define.split_whitespace();
        let (name, value) = (words.next().unwrap_or(""), words.next());
        if value.is_some() && !["EXS_EXTENSIONS"].contains(&name) {
            let _ = writeln!(text, "    sum += {name};");
            macros += 1;
        }
    }
    assert!(macros > 40, "{macros} macros of the header");
    text.push_str(
        "    exs_qhandle_t queue = EXS_QHANDLE_INVALID;\n    exs_mhandle_t memory = \
         EXS_MHANDLE_UNREGISTERED;\n    exs_counters_t figures;\n    exs_event_t event;\n    \
         return sum != 0 && exs_counters(-1, &figures, sizeof figures) == 0 &&\n           \
         exs_send(0, &event, sizeof event, 0, queue, 1, memory) == 0;\n}\n",
    );
    let file = source(&dir, "clean.cc", &text);
    let warnings = ["-Wshadow", "-Wold-style-cast", "-Wconversion", "-Wsign-conversion", "-Wundef"];
    let mut tried = 0;
    for compiler in ["g++", "clang++"] {
        if !has(compiler) {
            continue;
        }
        for std in ["c++98", "c++11", "c++17", "c++20"] {
            // C++98 knows no long long, which the program uses and the header does not.
            let mut c = strict(compiler, std);
            run(c
                .args(warnings)
                .args(["-Wno-long-long", "-Wno-c++11-long-long", "-fsyntax-only"])
                .arg(&file));
            tried += 1;
        }
    }
    println!("{tried} compilers and standards");
}

#[test]
fn strict_programs_see_no_extensions() {
    let dir = fresh("header-strict");
    let uses = |name: &str| {
        let text = format!("#include <sys/exs.h>\nvoid *p = (void *)&{name};\n");
        let file = source(&dir, &format!("{name}.c"), &text);
        move |define: &str| {
            let mut c = std::process::Command::new(cc());
            c.arg("-I").arg(home().join("include")).args(["-fsyntax-only", define]);
            support::output(c.arg(&file)).status.success()
        }
    };
    for name in [
        "exs_qfd",
        "exs_strerror",
        "exs_export",
        "exs_write",
        "exs_fetch_add",
        "exs_connect_host",
        "exs_mregister_dmabuf",
        "exs_counters",
        "exs_offer_stats",
        "exs_epoll_ctl",
        "exs_epoll_wait",
    ] {
        assert!(uses(name)("-DANY") && !uses(name)("-DEXS_STRICT"), "{name}");
        assert!(uses(name)("-DEXS_EXTENSIONS"), "{name}");
    }
    assert!(uses("exs_send")("-DEXS_STRICT"));
}
