//! What the user sees: progress while it runs, one summary at the end.
//!
//! Progress, warnings and errors go to standard error, results to standard
//! output; with `--json` standard output gets exactly one object.

use std::io::IsTerminal;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use exs_tools::out;
use indicatif::{BinaryBytes, HumanDuration, ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::transfer::tally::Tally;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct Summary {
    /// Files and links that are in place at the destination.
    pub(crate) files: u64,
    /// Bytes in them, holes counted as the zeros they read as.
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    /// Bytes that moved in this run, by time: what was there is not counted.
    pub(crate) gbytes_per_s: f64,
    /// Nothing failed, and of every file the destination's bytes were hashed in this run and
    /// have the source's BLAKE3 hash.
    pub(crate) verified: bool,
    /// Of how many files that is true.
    pub(crate) verified_files: u64,
    /// Files that were there and were believed by size and modification time, unread.
    pub(crate) present_files: u64,
    /// Nothing failed, and all of it is on the disk, names included. A server does not say:
    /// each client asks for it, and is told.
    pub(crate) synced: Option<bool>,
    /// Bytes that were there, and were not sent.
    pub(crate) resumed_bytes: u64,
    pub(crate) transport: String,
    pub(crate) errors: Vec<String>,
}

impl Summary {
    pub(crate) fn new(
        tally: &Tally,
        seconds: f64,
        synced: Option<bool>,
        transport: String,
    ) -> Summary {
        let (bytes, resumed_bytes) = (tally.bytes.load(Relaxed), tally.resumed.load(Relaxed));
        let errors = tally.troubles();
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let moved = tally.moved.load(Relaxed).saturating_sub(resumed_bytes) as f64;
        let (files, verified_files) = (tally.files.load(Relaxed), tally.verified.load(Relaxed));
        Summary {
            files,
            bytes,
            seconds,
            gbytes_per_s: if seconds > 0.0 { moved / seconds / 1e9 } else { 0.0 },
            verified: verified_files == files && errors.is_empty(),
            verified_files,
            present_files: tally.believed.load(Relaxed),
            synced: synced.map(|synced| synced && errors.is_empty()),
            resumed_bytes,
            transport,
            errors,
        }
    }

    pub(crate) fn print(&self, json: bool) {
        if json {
            print_json(self);
            return;
        }
        let check = match (self.verified, self.errors.len()) {
            (true, _) => "verified with BLAKE3".to_owned(),
            (false, 0) => self.partly_verified(),
            (false, 1) => "1 ERROR (see above)".to_owned(),
            (false, n) => format!("{n} ERRORS (see above)"),
        };
        let disk = if self.synced == Some(true) { ", on the disk" } else { "" };
        let already = match self.resumed_bytes {
            0 => String::new(),
            n => format!(", {} of it there already", BinaryBytes(n)),
        };
        say(&format!(
            "{} {}, {} in {:.2} s ({:.2} GB/s by {}){already}; {check}{disk}",
            self.files,
            if self.files == 1 { "file" } else { "files" },
            BinaryBytes(self.bytes),
            self.seconds,
            self.gbytes_per_s,
            self.transport,
        ));
    }
}

impl Summary {
    fn partly_verified(&self) -> String {
        let present = match self.present_files {
            0 => return "not verified".to_owned(),
            n => format!("{n} present by size and time, not verified"),
        };
        match self.verified_files {
            0 => present,
            1 => format!("1 file verified with BLAKE3, {present}"),
            n => format!("{n} files verified with BLAKE3, {present}"),
        }
    }
}

/// One object, one line, on standard output.
pub(crate) fn print_json(value: &impl Serialize) {
    if let Ok(text) = serde_json::to_string(value) {
        say(&text);
    }
}

/// The flag that SIGINT sets, once there is one.
pub(crate) static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// If its reader has gone (`exs-cp ls | head`), the command stops as if it were
/// interrupted, and `main` tells why.
pub(crate) fn say(line: &str) {
    if out!("{line}").is_err()
        && let Some(stop) = STOP.get()
    {
        stop.store(true, Relaxed);
    }
}
pub(crate) fn tell(line: &str) {
    exs_tools::tell!("exs-cp: {line}");
}

/// Shows how far it is, from a thread of its own.
pub(crate) struct Progress {
    quit: Sender<()>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    pub(crate) fn start(tally: &Arc<Tally>, json: bool) -> Progress {
        let (quit, quitted) = channel();
        let tally = Arc::clone(tally);
        let bar = !json && std::io::stderr().is_terminal();
        let run = move || {
            if bar {
                with_bar(&tally, &quitted);
            } else {
                with_lines(&tally, &quitted, json);
            }
        };
        let thread = std::thread::Builder::new().name("progress".into()).spawn(run).ok();
        Progress { quit, thread }
    }

    /// Stops it; nothing is half printed afterwards.
    pub(crate) fn finish(mut self) {
        let _ = self.quit.send(());
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

fn with_bar(tally: &Tally, quit: &Receiver<()>) {
    let style =
        "{wide_bar:.green/black} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}";
    let bar = ProgressBar::new(0);
    if let Ok(style) = ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    loop {
        let done = quit.recv_timeout(Duration::from_millis(100)) != Err(RecvTimeoutError::Timeout);
        bar.set_length(tally.total_bytes.load(Relaxed));
        bar.set_position(tally.moved.load(Relaxed));
        bar.set_message(format!(
            "{}/{} files",
            tally.files.load(Relaxed),
            tally.total_files.load(Relaxed)
        ));
        for w in tally.take_warnings() {
            bar.suspend(|| tell(&w));
        }
        if done {
            bar.finish_and_clear();
            return;
        }
    }
}

/// For logs: a line now and then, more rarely as time goes on.
fn with_lines(tally: &Tally, quit: &Receiver<()>, quiet: bool) {
    let start = Instant::now();
    let mut next = Duration::from_secs(1);
    loop {
        let done = quit.recv_timeout(Duration::from_millis(100)) != Err(RecvTimeoutError::Timeout);
        for w in tally.take_warnings() {
            tell(&w);
        }
        if done {
            return;
        }
        let spent = start.elapsed();
        if !quiet && spent >= next {
            tell(&line(tally, spent));
            next += next.min(Duration::from_secs(30));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn line(tally: &Tally, spent: Duration) -> String {
    let (moved, total) = (tally.moved.load(Relaxed), tally.total_bytes.load(Relaxed));
    let new = moved.saturating_sub(tally.resumed.load(Relaxed)) as f64;
    let rate = new / spent.as_secs_f64();
    let left = match rate > 0.0 {
        true => {
            let seconds = (total.saturating_sub(moved) as f64 / rate).min(1e9);
            HumanDuration(Duration::from_secs_f64(seconds)).to_string()
        }
        false => "unknown".into(),
    };
    format!(
        "{} of {} ({}/{} files), {:.2} GB/s, {left} left",
        BinaryBytes(moved),
        BinaryBytes(total),
        tally.files.load(Relaxed),
        tally.total_files.load(Relaxed),
        rate / 1e9,
    )
}
