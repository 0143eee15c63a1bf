//! Counters of the work so far, shared by all connections of a command.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::disk::meta::Meta;
use crate::error::Trouble;

/// How sure it is that the bytes of a file in place are the source's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proof {
    /// They were hashed at the destination in this run, and the hash is the source's. A
    /// symbolic link has no hash, and was made in this run.
    Hashed,
    /// They were not hashed.
    Unchecked,
    /// They were there before, and were not read.
    Believed,
}

impl Proof {
    /// Of a file that was transferred, or compared.
    pub(crate) fn by(verify: bool) -> Proof {
        if verify { Proof::Hashed } else { Proof::Unchecked }
    }
}

/// Counters, and everything that went wrong.
#[derive(Default)]
pub(crate) struct Tally {
    /// Files there are, and their bytes.
    pub(crate) total_files: AtomicU64,
    pub(crate) total_bytes: AtomicU64,
    /// Entries that are in place: files, and separately the bytes in them.
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Files whose bytes at the destination were hashed in this run, and were the source's.
    pub(crate) verified: AtomicU64,
    /// Files that were believed by their size and modification time.
    pub(crate) believed: AtomicU64,
    /// Those of `bytes` that were at the destination already.
    pub(crate) resumed: AtomicU64,
    /// Bytes dealt with, for the progress bar.
    pub(crate) moved: AtomicU64,
    /// Entries whose set-user-ID, set-group-ID or sticky bit the copy does not get.
    special: AtomicU64,
    troubles: Mutex<Vec<String>>,
    warnings: Mutex<Vec<String>>,
}

/// The most messages that are kept and told in full.
const MOST_TOLD: usize = 1000;

impl Tally {
    pub(crate) fn expect(&self, bytes: u64) {
        self.total_files.fetch_add(1, Relaxed);
        add(&self.total_bytes, bytes);
    }

    /// A file that was expected has grown or shrunk.
    pub(crate) fn resized(&self, from: u64, to: u64) {
        let change = |sum: u64| Some(sum.saturating_sub(from).saturating_add(to));
        let _ = self.total_bytes.fetch_update(Relaxed, Relaxed, change);
    }

    /// Counts an entry that loses such bits; `kept`: the user asked to keep them.
    pub(crate) fn special_bits(&self, meta: &Meta, kept: bool) {
        self.special.fetch_add((meta.is_special() && !kept).into(), Relaxed);
    }

    /// A message about lost bits, if there are any.
    pub(crate) fn dropped_bits(&self) -> Option<String> {
        let bits = "set-user-ID, set-group-ID or sticky bits, which the";
        match self.special.load(Relaxed) {
            0 => None,
            1 => {
                Some(format!("1 entry has {bits} copy does not get; --preserve-special keeps them"))
            }
            n => Some(format!(
                "{n} entries have {bits} copies do not get; --preserve-special keeps them"
            )),
        }
    }

    /// A file is in place.
    pub(crate) fn file_done(&self, bytes: u64, proof: Proof) {
        match proof {
            Proof::Hashed => self.verified.fetch_add(1, Relaxed),
            Proof::Believed => self.believed.fetch_add(1, Relaxed),
            Proof::Unchecked => 0,
        };
        self.files.fetch_add(1, Relaxed);
        add(&self.bytes, bytes);
    }
    pub(crate) fn moved(&self, bytes: u64) {
        add(&self.moved, bytes);
    }
    /// Bytes that are known to be there and need not move.
    pub(crate) fn resumed(&self, bytes: u64) {
        add(&self.resumed, bytes);
        add(&self.moved, bytes);
    }

    pub(crate) fn trouble(&self, t: &Trouble) {
        self.problem(t.to_string());
    }
    pub(crate) fn problem(&self, text: String) {
        push(&self.troubles, text);
    }
    pub(crate) fn warn(&self, text: String) {
        push(&self.warnings, text);
    }

    pub(crate) fn troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap_or_else(|p| p.into_inner()).clone()
    }
    /// Warnings since the last call.
    pub(crate) fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut *self.warnings.lock().unwrap_or_else(|p| p.into_inner()))
    }
}

/// Sizes are what the peer says, up to 2^62 bytes a file: their sum stops at its greatest value.
fn add(sum: &AtomicU64, bytes: u64) {
    // The closure always gives a value, so this cannot fail.
    let _ = sum.fetch_update(Relaxed, Relaxed, |sum| Some(sum.saturating_add(bytes)));
}

fn push(list: &Mutex<Vec<String>>, text: String) {
    let mut list = list.lock().unwrap_or_else(|p| p.into_inner());
    match list.len() {
        n if n < MOST_TOLD => list.push(text),
        MOST_TOLD => list.push("and more of the same kind".into()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_what_a_peer_says_do_not_begin_again() {
        let tally = Tally::default();
        for _ in 0..5 {
            tally.expect(1 << 62);
            tally.moved(1 << 62);
        }
        assert_eq!(tally.total_files.load(Relaxed), 5);
        let sums = [&tally.total_bytes, &tally.moved].map(|sum| sum.load(Relaxed));
        assert_eq!(sums, [u64::MAX; 2]);
        tally.resized(1 << 62, 0);
        assert_eq!(tally.total_bytes.load(Relaxed), u64::MAX - (1 << 62));
    }
}
