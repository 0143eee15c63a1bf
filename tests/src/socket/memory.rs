//! Memory from elsewhere: mapped files and huge pages.

use std::fs::File;
use std::io::{Read, Seek};
use std::sync::Arc;

use exs::{MemoryRegion, RecvFlags};

use crate::harness::{Env, Ledger, check, pattern};
use crate::skip::part;
use crate::sys::{Mapping, memfd};

/// Larger than what is copied, and no multiple of a page.
const LEN: usize = 1_500_000;

/// Moves bytes from one region into the other.
fn through(env: &Env, from: &MemoryRegion, to: &MemoryRegion, what: &str) {
    let (a, b) = env.streams();
    for len in [100, 70_000, LEN] {
        let mut ledger = Ledger::new();
        let mut tx = from.buffer(..len).unwrap();
        tx.copy_from_slice(&pattern(len as u64, 0, len));
        let rx = to.buffer(..len).unwrap();
        let recv = ledger.post("recv", |q, t| b.recv(q, t, rx, RecvFlags::WAITALL));
        let send = ledger.post("send", |q, t| a.send(q, t, tx));
        let sent = ledger.wait(send);
        assert!(sent.error().is_none(), "{what}: {:?}", sent.error());
        let received = ledger.wait(recv);
        assert!(received.error().is_none(), "{what}: {:?}", received.error());
        check(len as u64, 0, &received.into_buffer().unwrap());
        ledger.finish();
    }
}

fn region(mapping: Mapping) -> MemoryRegion {
    mapping.into_region(()).unwrap()
}

/// Each kind of mapping sends and receives; a file that is mapped shared has the bytes.
pub fn mappings_of_all_kinds(env: &Env) {
    let file = memfd(LEN).unwrap();
    let (shared, other) = (Mapping::of_file(&file, LEN, true), memfd(LEN).unwrap());
    let (shared, other) = (shared.unwrap(), Mapping::of_file(&other, LEN, true).unwrap());
    through(env, &region(other), &region(shared), "a file in memory, mapped shared");
    let mut bytes = Vec::new();
    let mut read = file.try_clone().unwrap();
    read.rewind().unwrap();
    read.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), LEN);
    check(LEN as u64, 0, &bytes);

    // A file on disk of which the mapping has a copy.
    let exe = || File::open("/proc/self/exe").unwrap();
    if exe().metadata().unwrap().len() >= LEN as u64 {
        let map = || region(Mapping::of_file(&exe(), LEN, false).unwrap());
        through(env, &map(), &map(), "a file on disk, mapped privately");
    }
    match (Mapping::of_huge_pages(LEN), Mapping::of_huge_pages(LEN)) {
        (Ok(from), Ok(to)) => through(env, &region(from), &region(to), "huge pages"),
        (Err(e), _) | (_, Err(e)) => part(&format!("no huge pages here: {e}")),
    }
}

/// The owner is dropped when no handle, no operation and no device uses the memory, and not before.
pub fn the_owner_lives_as_long_as_its_memory_is_used(env: &Env) {
    let (a, b) = env.streams();
    let owner = Arc::new(());
    let file = memfd(LEN).unwrap();
    let map = Mapping::of_file(&file, LEN, true).unwrap();
    let region = map.into_region(Arc::clone(&owner)).unwrap();
    let mut ledger = Ledger::new();
    let buffer = region.buffer(..).unwrap();
    let recv = ledger.post("recv", |q, t| b.recv(q, t, buffer, RecvFlags::WAITALL));
    drop(region);
    assert_eq!(Arc::strong_count(&owner), 2, "the receive has the memory");
    a.blocking().send_all(&pattern(7, 0, LEN)).unwrap();
    let received = ledger.wait_ok(recv).into_buffer().unwrap();
    check(7, 0, &received);
    assert_eq!(Arc::strong_count(&owner), 2);
    drop(received);
    ledger.finish();
    // The leader ends the registration.
    while Arc::strong_count(&owner) > 1 {
        std::thread::yield_now();
    }
}
