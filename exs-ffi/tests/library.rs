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
        // (That an address is never NULL is what the compiler would say.)
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

/// Programs to be installed: what they do is nothing here.
fn programs(dir: &Path) {
    for name in ["exs-cp", "exs-pingpong", "exs-perf", "exs-info", "exs-rdma-write"] {
        let path = dir.join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Compiles the README's way against an installed tree, and runs.
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
            .env("PKG_CONFIG_LIBDIR", &pc)
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
    let private = flags(&["--static", "--libs"]);
    assert!(private.iter().any(|f| f == "-lgcc_s"), "{private:?}");
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
    assert!(root.join("opt/exs/bin/exs-cp").exists());
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

fn the_debian_package_installs_and_goes() {
    if !has("dpkg-deb") || !has("pkg-config") {
        return;
    }
    let (out, bins) = (fresh("library-deb"), fresh("library-deb-programs"));
    programs(&bins);
    run(Command::new(home().join("deb.sh")).args([library(), &bins, &out]));
    let deb = fs::read_dir(&out).unwrap().map(|e| e.unwrap().path());
    let deb = { deb }.find(|p| p.extension().is_some_and(|e| e == "deb")).expect("a package");
    let fields = run(Command::new("dpkg-deb").arg("-f").arg(&deb));
    assert!(fields.contains("Depends: libc6 (>= 2."), "{fields}");
    assert_eq!(cfg!(feature = "verbs"), fields.contains("libibverbs1"), "{fields}");
    let root = fresh("library-deb-root");
    run(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&root));
    let multiarch = run(Command::new(cc()).arg("-print-multiarch"));
    use_installed(&root, "/usr", &format!("/usr/lib/{}", multiarch.trim()));

    // In a system of its own: only the superuser may, and only dpkg is there.
    let is_root = run(Command::new("id").arg("-u")).trim() == "0";
    if !is_root {
        println!("skipped: installing the package (only the superuser may)");
        return;
    }
    let root = fresh("library-dpkg-root");
    for dir in ["var/lib/dpkg/info", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for file in ["var/lib/dpkg/status", "var/lib/dpkg/available"] {
        fs::write(root.join(file), "").unwrap();
    }
    let dpkg = |args: &[&str]| {
        let mut c = Command::new("dpkg");
        c.arg(format!("--root={}", root.display())).arg("--force-depends").args(args);
        run(&mut c)
    };
    dpkg(&["-i", deb.to_str().unwrap()]);
    assert!(root.join("usr/include/sys/exs.h").exists());
    dpkg(&["-r", "exs"]);
    assert!(!root.join("usr/include/sys/exs.h").exists());
    assert!(!root.join("usr/share/doc/exs").exists(), "something was left");
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
    what_is_installed_is_whole();
    the_debian_package_installs_and_goes();
    support::remove_library();
}
