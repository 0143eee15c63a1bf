//! What was done so far; shared by all connections of a command.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::disk::meta::Meta;
use crate::error::Trouble;

/// Counters, and everything that went wrong.
#[derive(Default)]
pub(crate) struct Tally {
    /// Files there are, and their bytes.
    pub(crate) total_files: AtomicU64,
    pub(crate) total_bytes: AtomicU64,
    /// Entries that are in place: files, and separately the bytes in them.
    pub(crate) files: AtomicU64,
    pub(crate) bytes: AtomicU64,
    /// Of these, what was there already.
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
        self.total_bytes.fetch_add(bytes, Relaxed);
    }

    /// A file that was expected has grown or shrunk.
    pub(crate) fn resized(&self, from: u64, to: u64) {
        self.total_bytes.fetch_add(to.wrapping_sub(from), Relaxed);
    }

    /// An entry is to be copied; are such bits of it kept?
    pub(crate) fn special_bits(&self, meta: &Meta, kept: bool) {
        self.special.fetch_add((meta.is_special() && !kept).into(), Relaxed);
    }

    /// What the user has to know of bits that were not kept.
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
    pub(crate) fn file_done(&self, bytes: u64) {
        self.files.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
    pub(crate) fn moved(&self, bytes: u64) {
        self.moved.fetch_add(bytes, Relaxed);
    }
    /// Bytes that are known to be there and need not move.
    pub(crate) fn resumed(&self, bytes: u64) {
        self.resumed.fetch_add(bytes, Relaxed);
        self.moved.fetch_add(bytes, Relaxed);
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

fn push(list: &Mutex<Vec<String>>, text: String) {
    let mut list = list.lock().unwrap_or_else(|p| p.into_inner());
    match list.len() {
        n if n < MOST_TOLD => list.push(text),
        MOST_TOLD => list.push("and more of the same kind".into()),
        _ => {}
    }
}
