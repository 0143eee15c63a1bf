//! What all threads of a process share: the library's statics.
//!
//! Shards share nothing on the data path. A test counts how often the locks of the process are
//! taken and its numbers written, and finds none. It can only count those of `sys/process.rs`, so
//! no static may have a lock or an atomic of another kind. What is set once (`OnceLock`) is free.

use crate::source::Source;

/// Types that several threads write.
const WRITTEN: [&str; 5] = ["Mutex<", "RwLock<", "Condvar", "LazyLock<", "Atomic"];

/// The file that has the types which count.
const HOME: &str = "exs/src/sys/process.rs";

pub(crate) fn check(src: &Source) -> Vec<String> {
    let ours = ["exs/src/", "exs-ffi/src/"].iter().any(|home| src.path.starts_with(home));
    if !ours || src.path == HOME {
        return Vec::new();
    }
    let end = src.code.find("\nmod tests {").unwrap_or(src.code.len());
    let (mut found, mut depth, mut local_to_threads) = (Vec::new(), 0_usize, None);
    for (n, line) in src.code[..end].lines().enumerate() {
        if line.contains("thread_local!") {
            local_to_threads = Some(depth);
        }
        let declared = line.trim_start();
        let declared = ["pub(super) ", "pub(crate) "]
            .iter()
            .find_map(|seen| declared.strip_prefix(seen))
            .unwrap_or(declared);
        if let Some(rest) = declared.strip_prefix("static ")
            && local_to_threads.is_none()
            && ![": ProcessLock<", ": ProcessTable<", ": Handles<"]
                .iter()
                .any(|ty| rest.contains(ty))
            && WRITTEN.iter().any(|ty| rest.contains(ty))
        {
            found.push(format!(
                "{}:{}: this static is written by all threads: make it a ProcessLock, a \
                 ProcessTable or a ProcessNumber (exs/src/sys/process.rs), which are counted",
                src.path,
                n + 1
            ));
        }
        depth = (depth + line.matches('{').count()).saturating_sub(line.matches('}').count());
        if local_to_threads.is_some_and(|outside| depth <= outside) && line.contains('}') {
            local_to_threads = None;
        }
    }
    found
}

#[test]
fn a_static_that_threads_write_is_found() {
    let bad = [
        "static A: Mutex<u32> = Mutex::new(1);",
        "fn f() {\n    static B: AtomicU64 = AtomicU64::new(1);\n}",
        "pub(super) static C: [RwLock<u8>; 2] = [];",
        "thread_local! {\n    static D: Cell<u32> = Cell::new(1);\n}\nstatic E: AtomicBool = X;",
    ];
    for text in bad {
        assert_eq!(check(&Source::new("exs/src/tcp/a.rs", text)).len(), 1, "{text}");
    }
    let good = [
        "static A: ProcessLock<u32> = ProcessLock::new(1);",
        "static B: OnceLock<Exit> = OnceLock::new();",
        "static C: ProcessLock<Vec<Arc<AtomicU64>>> = ProcessLock::new(Vec::new());",
        "thread_local! {\n    static D: OnceLock<Arc<AtomicU64>> = const {\n        OnceLock::new()\n    };\n}",
        "mod a {}\nmod tests {\n    static A: Mutex<u32> = Mutex::new(1);\n}",
    ];
    for text in good {
        assert!(check(&Source::new("exs/src/tcp/a.rs", text)).is_empty(), "{text}");
    }
    assert!(check(&Source::new(HOME, bad[0])).is_empty());
}
