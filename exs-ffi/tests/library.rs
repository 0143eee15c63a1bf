//! libexs.so and libexs.a: what they show, that programs link with them and run, and that
//! what is installed is whole.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use support::{cc, declared, fresh, has, home, library, private_libraries, run, source, strict};

/// Names that a table of symbols defines for all to see.
fn shown(options: &[&str], file: &Path) -> Vec<String> {
    let text = run(Command::new("readelf").args(options).args(["--wide"]).arg(file));
    let mut names: Vec<String> = text
        .lines()
        .map(|l| l.split_whitespace().collect::<Vec<_>>())
        .filter(|f| f.len() >= 8 && ["GLOBAL", "WEAK"].contains(&f[4]) && f[6] != "UND")
        .map(|f| f[7].split('@').next().unwrap_or("").to_owned())
        .filter(|name| !name.starts_with("EXS_"))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// A program linked with the library that is shared, or not.
fn build(program: &Path, source: &Path, shared: bool) {
    let mut c = strict(&cc(), "c99");
    c.arg("-g").arg(source).arg("-o").arg(program);
    if shared {
        c.arg("-L").arg(library()).args(["-lexs", "-lpthread"]);
    } else {
        c.arg(library().join("libexs.a")).args(private_libraries());
    }
    run(&mut c);
}

fn symbols() {
    let names = declared();
    assert!(names.len() > 30, "{names:?}");
    assert_eq!(shown(&["--dyn-syms"], &library().join("libexs.so")), names, "libexs.so");
    assert_eq!(shown(&["--symbols"], &library().join("libexs.a")), names, "libexs.a");
    let dynamic = run(Command::new("readelf")
        .args(["--dynamic", "--version-info", "--wide"])
        .arg(library().join("libexs.so")));
    assert!(dynamic.contains("[libexs.so.1]") && dynamic.contains("EXS_1.0"), "{dynamic}");
    // Its threads do not end before the process does.
    assert!(dynamic.contains("NODELETE"), "{dynamic}");
}

fn every_declaration_resolves() {
    let dir = fresh("library-all");
    let mut text = String::from("#include <sys/exs.h>\nint main(void)\n{\n    int n = 0;\n");
    for name in declared() {
        text.push_str(&format!("    n += (uintptr_t)&{name} != 0;\n"));
    }
    text.push_str(&format!("    return n == {} ? 0 : 1;\n}}\n", declared().len()));
    for shared in [true, false] {
        let program = dir.join(if shared { "shared" } else { "static" });
        let file = source(&dir, "all.c", &text);
        let mut c = Command::new(cc());
        // `-w`: the compiler would warn that the address of a function is never NULL.
        c.arg("-I").arg(home().join("include")).arg("-w").arg(file).arg("-o").arg(&program);
        if shared {
            c.arg("-L").arg(library()).arg("-lexs");
        } else {
            c.arg(library().join("libexs.a")).args(private_libraries());
        }
        run(&mut c);
        run(Command::new(&program).env("LD_LIBRARY_PATH", library()));
    }
}

fn a_program_runs_with_either() {
    let dir = fresh("library-smoke");
    let file = home().parent().unwrap().join("tests/c/smoke.c");
    for shared in [true, false] {
        let program = dir.join(if shared { "smoke-shared" } else { "smoke-static" });
        build(&program, &file, shared);
        let said =
            run(Command::new("timeout").arg("120").arg(&program).env("LD_LIBRARY_PATH", library()));
        assert!(said.contains("all is well"), "{said}");
    }
}

/// Sends on kernel sockets: each reaches what its number means by now, and takes one call.
fn small_sends_take_one_call() {
    let dir = fresh("library-calls");
    let program = dir.join("one_call");
    build(&program, &home().join("../tests/c/one_call.c"), true);
    let rounds = 2000;
    let mut c = Command::new(&program);
    c.arg(rounds.to_string()).env("LD_LIBRARY_PATH", library());
    assert_eq!(run(&mut c), "all is well\n");
    if !has("strace") {
        return;
    }
    let calls = "trace=fstat,newfstatat,statx,getsockopt,send,sendto,sendmsg,fcntl,close,dup";
    let counts = dir.join("counts");
    let mut c = Command::new("strace");
    c.args(["-f", "-c", "-e", calls, "-o"]).arg(&counts).arg(&program).arg(rounds.to_string());
    let out = support::output(c.env("LD_LIBRARY_PATH", library()));
    let text = fs::read_to_string(&counts).unwrap_or_default();
    if !out.status.success() || text.is_empty() {
        let why = String::from_utf8_lossy(&out.stderr);
        return println!("skipped: strace does not run here: {why}");
    }
    // % time, seconds, usecs/call, calls, ...
    let number = |line: &str| line.split_whitespace().nth(3)?.parse::<u32>().ok();
    let rows = text.lines().filter(|l| !l.ends_with("total"));
    let all: u32 = rows.filter_map(number).sum();
    // With each tick of the background thread a burst begins again, which takes some calls. strace makes
    // a send as slow as some of a tick.
    assert!(all > rounds && all < rounds + rounds / 2, "{all} calls for {rounds} sends:\n{text}");
}

/// Programs to be installed: what they do is nothing here.
fn programs(dir: &Path) {
    for name in ["exs-cp", "exs-pingpong", "exs-perf", "exs-info", "exs-top", "exs-rdma-write"] {
        let path = dir.join(name);
        // It makes its manual page, as the true ones do.
        let page = format!(".TH {name} 1\n.SH NAME\n{name} \\- a program\n");
        let text = format!(
            "#!/bin/sh\n[ \"$1\" != --man-pages ] || cat > \"$2/{name}.1\" <<'END'\n{page}END\n"
        );
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Where pkg-config finds what the system has.
fn default_path() -> String {
    run(Command::new("pkg-config").args(["--variable=pc_path", "pkg-config"])).trim().to_owned()
}

/// Compiles the book's way against an installed tree, and runs; linked with the shared
/// library, and as a program that needs none.
fn use_installed(root: &Path, prefix: &str, libdir: &str) {
    let dir = fresh("library-user");
    let file = source(
        &dir,
        "user.c",
        "#include <sys/exs.h>\nint main(void) { return exs_init(EXS_VERSION); }\n",
    );
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    let pc = at(libdir).join("pkgconfig");
    let flags = |kind: &[&str]| -> Vec<String> {
        let text = run(Command::new("pkg-config")
            .args(kind)
            .arg(format!("--define-variable=prefix={}", at(prefix).display()))
            .arg("exs")
            .env("PKG_CONFIG_LIBDIR", format!("{}:{}", pc.display(), default_path()))
            .env("PKG_CONFIG_ALLOW_SYSTEM_CFLAGS", "1")
            .env("PKG_CONFIG_ALLOW_SYSTEM_LIBS", "1"));
        text.split_whitespace().map(str::to_owned).collect()
    };
    run(Command::new(cc())
        .arg(&file)
        .args(flags(&["--cflags", "--libs"]))
        .arg("-o")
        .arg(dir.join("user")));
    run(Command::new(dir.join("user")).env("LD_LIBRARY_PATH", at(libdir)));
    // As a program that needs nothing at run time. This takes static libraries of all
    // that EXS needs; rdma-core's and libnl's come with their -dev packages.
    let all = flags(&["--static", "--cflags", "--libs"]);
    assert!(all.iter().any(|f| f == "-lgcc_eh"), "{all:?}");
    let mut link = Command::new(cc());
    link.arg("-static").arg(&file).args(all).arg("-o").arg(dir.join("alone"));
    run(&mut link);
    run(&mut Command::new(dir.join("alone")));
    let dynamic = run(Command::new("readelf").arg("--dynamic").arg(dir.join("alone")));
    assert!(!dynamic.contains("NEEDED"), "{dynamic}");
}

fn what_is_installed_is_whole() {
    if !has("pkg-config") {
        return;
    }
    let (root, bins) = (fresh("library-installed"), fresh("library-programs"));
    programs(&bins);
    run(Command::new(home().join("install.sh"))
        .args([library(), &bins])
        .env("PREFIX", "/opt/exs")
        .env("DESTDIR", &root));
    use_installed(&root, "/opt/exs", "/opt/exs/lib");
    let man = root.join("opt/exs/share/man");
    for name in declared() {
        assert!(man.join(format!("man3/{name}.3")).exists(), "there is no page of {name}");
    }
    assert!(root.join("opt/exs/bin/exs-cp").exists() && man.join("man1/exs-cp.1").exists());
    if has("mandoc") {
        let lint = "mandoc -Tlint -Wwarning man7/*.7 man3/*.3";
        let said = run(Command::new("sh").args(["-c", lint]).current_dir(&man));
        assert_eq!(said, "");
    }
    if has("man") {
        for page in ["man7/exs.7", "man3/exs_send.3", "man3/exs_getpeername.3"] {
            let mut c = Command::new("man");
            c.args(["--warnings", "-E", "UTF-8", "-l"])
                .arg(man.join(page))
                .env("LC_ALL", "C.UTF-8");
            let out = support::output(&mut c);
            assert_eq!(String::from_utf8_lossy(&out.stderr), "", "{page}");
            assert!(out.status.success() && out.stdout.len() > 500, "{page}");
        }
    }
}

/// What dpkg-deb says of a package.
fn asked(deb: &Path, what: &[&str]) -> String {
    run(Command::new("dpkg-deb").args(&what[..1]).arg(deb).args(&what[1..]))
}

fn the_debian_packages_install_and_go() {
    if !has("dpkg-deb") || !has("pkg-config") {
        return;
    }
    let (out, bins) = (fresh("library-deb"), fresh("library-deb-programs"));
    programs(&bins);
    run(Command::new(home().join("deb.sh")).args([library(), &bins, &out]));
    let all: Vec<_> = fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
    let of = |name: &str| {
        let start = format!("{name}_");
        let is =
            |p: &&std::path::PathBuf| p.file_name().unwrap().to_str().unwrap().starts_with(&start);
        all.iter().find(is).unwrap_or_else(|| panic!("no {name} among {all:?}"))
    };
    let debs = ["libexs1", "libexs-dev", "exs-tools"].map(of);
    assert_eq!(all.len(), debs.len(), "{all:?}");
    let fields = asked(debs[0], &["--field"]);
    assert!(fields.contains("Depends: libc6 (>= 2."), "{fields}");
    assert!(fields.contains("Multi-Arch: same"), "{fields}");
    assert_eq!(cfg!(feature = "verbs"), fields.contains("libibverbs1"), "{fields}");
    assert!(
        asked(debs[1], &["--field"]).contains("Depends: libexs1 (= "),
        "one library, one header"
    );
    let symbols = asked(debs[0], &["--info", "symbols"]);
    for name in declared() {
        assert!(symbols.contains(&format!("\n {name}@EXS_1.0 ")), "{name}: {symbols}");
    }
    assert!(asked(debs[0], &["--info", "shlibs"]).starts_with("libexs 1 libexs1 "));
    assert!(asked(debs[0], &["--info", "triggers"]).contains("ldconfig"));
    let root = fresh("library-deb-root");
    for deb in debs {
        let contents = asked(deb, &["--contents"]);
        for must in ["/changelog.Debian.gz", "/changelog.gz", "/copyright"] {
            assert!(contents.contains(must), "{must}: {contents}");
        }
        run(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&root));
    }
    assert!(root.join("usr/share/man/man1/exs-cp.1.gz").exists());
    let multiarch = run(Command::new(cc()).arg("-print-multiarch"));
    use_installed(&root, "/usr", &format!("/usr/lib/{}", multiarch.trim()));
    if has("lintian") {
        // The programs here are scripts, which the last package of the true ones has not.
        let said =
            support::output(Command::new("lintian").args(["--fail-on", "error"]).args(&debs[..2]));
        let text = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.status.success(), "{text}{}", String::from_utf8_lossy(&said.stderr));
    }
    install(&debs);
}

/// In a system of its own: only the superuser may, and only dpkg is there.
fn install(debs: &[&std::path::PathBuf]) {
    let is_root = run(Command::new("id").arg("-u")).trim() == "0";
    if !is_root {
        println!("skipped: installing the packages (only the superuser may)");
        return;
    }
    let root = fresh("library-dpkg-root");
    for dir in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
        fs::write(root.join(file), "").unwrap();
    }
    let mut dpkg = Command::new("dpkg");
    dpkg.arg(format!("--root={}", root.display())).arg("--force-depends").arg("-i").args(debs);
    run(&mut dpkg);
    assert!(root.join("usr/include/sys/exs.h").exists() && root.join("usr/bin/exs-cp").exists());
    let mut dpkg = Command::new("dpkg");
    dpkg.arg(format!("--root={}", root.display())).args([
        "-r",
        "exs-tools",
        "libexs-dev",
        "libexs1",
    ]);
    run(&mut dpkg);
    assert!(!root.join("usr/include/sys/exs.h").exists());
    for name in ["libexs1", "libexs-dev", "exs-tools"] {
        assert!(!root.join("usr/share/doc").join(name).exists(), "something of {name} was left");
    }
}

/// A compiler for musl beside a Rust toolchain for glibc is told at once, with what to do.
fn compilers_for_two_c_libraries_are_refused() {
    if !has("musl-gcc") || cfg!(target_env = "musl") {
        return;
    }
    let out = support::output(
        Command::new(home().join("build.sh")).arg(fresh("library-musl")).env("CC", "musl-gcc"),
    );
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("TARGET=x86_64-unknown-linux-musl"), "{said}");
}

/// One test, as all of it is about one library, which is large and built once.
#[test]
fn the_library() {
    for tool in ["objcopy", "readelf", "ld"] {
        if !has(tool) {
            return;
        }
    }
    symbols();
    every_declaration_resolves();
    a_program_runs_with_either();
    small_sends_take_one_call();
    what_is_installed_is_whole();
    the_debian_packages_install_and_go();
    compilers_for_two_c_libraries_are_refused();
    support::remove_library();
}
