//! What the programs print, and how they end when its reader has gone.
//!
//! `println!` panics where standard output is full or closed. Here a write that fails is an
//! error as any other: the program unwinds in order (servers that it started end, temporary
//! directories go), and then
//! - a reader that went away (`exs-cp ls HOST | head`) ends the program by SIGPIPE, as it ends
//!   other tools;
//! - anything else (a full disk) is one line on standard error, and status 1.
//!
//! Standard error has no such end: a message that cannot be written there changes nothing.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use clap::Parser;

use crate::man;

/// Standard output takes no more.
#[derive(Clone, Debug, thiserror::Error)]
#[error("cannot write to standard output: {why}")]
pub struct Lost {
    why: String,
    reader_gone: bool,
}

/// The first write that failed. Threads print, too, and have no caller to hand an error to.
static LOST: Mutex<Option<Lost>> = Mutex::new(None);

fn lost() -> Option<Lost> {
    LOST.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Keeps the error of a write for the end of the program.
fn kept(written: io::Result<()>) -> Result<(), Lost> {
    written.map_err(|e| {
        let reader_gone = e.kind() == io::ErrorKind::BrokenPipe;
        let text = e.to_string();
        let why = text.split(" (os error").next().unwrap_or_default().to_owned();
        let lost = Lost { why, reader_gone };
        LOST.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(lost).clone()
    })
}

/// Writes to standard output what [`out!`](crate::out!) has formatted.
///
/// # Errors
/// Standard output takes it no more, or did not take something before.
pub fn write(text: fmt::Arguments<'_>) -> Result<(), Lost> {
    match lost() {
        Some(lost) => Err(lost),
        None => kept(io::stdout().lock().write_fmt(text)),
    }
}

/// Writes to standard error what [`tell!`](crate::tell!) has formatted.
pub fn tell(text: fmt::Arguments<'_>) {
    // There is no other place to say that this failed.
    let _ = io::stderr().lock().write_fmt(text);
}

/// A line on standard output: `out!("{n} files")?`. As `println!`, but a write that fails is
/// an error ([`Lost`](crate::out::Lost)); [`main`](crate::out::main) reports an error that its caller ignores.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => {
        $crate::out::write(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// A line on standard error. As `eprintln!`, but it does not panic.
#[macro_export]
macro_rules! tell {
    ($($text:tt)*) => {
        $crate::out::tell(format_args!("{}\n", format_args!($($text)*)))
    };
}

/// A program: reads its command line, runs, says what went wrong, and ends.
///
/// `run` returns the exit status, or that of a failure and what to say of it.
pub fn main<C: Parser>(run: impl FnOnce(C) -> Result<u8, (u8, String)>) -> ExitCode {
    let command = C::command();
    let name = command.get_name().to_owned();
    let mut args = std::env::args_os().skip(1);
    let result = match (args.next(), args.next()) {
        // For packages: the manual pages.
        (Some(asked), Some(dir)) if asked == OsStr::new("--man-pages") => {
            man::write(command, dir.as_ref()).map(|()| 0).map_err(|e| (1, e.to_string()))
        }
        _ => match C::try_parse() {
            Ok(args) => run(args),
            Err(e) => {
                let printed = e.print();
                if !e.use_stderr() {
                    // It is noted, and told below.
                    let _ = kept(printed);
                }
                Ok(u8::try_from(e.exit_code()).unwrap_or(2))
            }
        },
    };
    end(&name, result)
}

fn end(name: &str, result: Result<u8, (u8, String)>) -> ExitCode {
    let _ = kept(io::stdout().lock().flush());
    match (lost(), result) {
        (Some(lost), _) => {
            if lost.reader_gone {
                // It returns only if the signal cannot be sent.
                let _ =
                    signal_hook::low_level::emulate_default_handler(signal_hook::consts::SIGPIPE);
            }
            tell!("{name}: {lost}");
            ExitCode::FAILURE
        }
        (None, Ok(status)) => ExitCode::from(status),
        (None, Err((status, why))) => {
            tell!("{name}: {why}");
            ExitCode::from(status)
        }
    }
}

/// For `main`: a failure with status 1.
pub fn failed<T>(result: Result<T, impl fmt::Display>) -> Result<u8, (u8, String)> {
    result.map(|_| 0).map_err(|e| (1, e.to_string()))
}
