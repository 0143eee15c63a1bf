//! Atomic operations: an extension of ES-API.

use std::ffi::c_int;

use exs::{Atomics, EventQueue, Token};

use crate::abi::*;
use crate::blocking::{self, Patience, TOKEN};
use crate::data::not_ours;
use crate::error::{Fail, Result, border};
use crate::event::Call;
use crate::extension::descriptor;
use crate::ptr::{In, Out};
use crate::queues;
use crate::sockets::{self, Entry, Target};

/// The operands of exs_fetch_add and exs_compare_swap.
enum Operands {
    Add(u64),
    CompareSwap(u64, u64),
}

/// The arguments that exs_fetch_add and exs_compare_swap share.
struct Atomic {
    fd: c_int,
    remote: In<Remote>,
    offset: u64,
    operands: Operands,
    old: Out<u64>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
}

impl Atomic {
    fn post(&self, entry: &Entry, queue: &EventQueue, token: Token) -> Result<()> {
        let (remote, offset) = (descriptor(self.remote)?, self.offset);
        match self.operands {
            Operands::Add(add) => entry.socket.fetch_add(queue, token, &remote, offset, add)?,
            Operands::CompareSwap(expected, new) => {
                entry.socket.compare_swap(queue, token, &remote, offset, expected, new)?;
            }
        }
        Ok(())
    }

    fn run(self) -> Result<c_int> {
        let (fd, queue) = (self.fd, self.queue);
        let Target::Exs(entry) = sockets::find(fd)? else { return not_ours(fd) };
        if self.flags != 0 {
            return Err(Fail::fixed(libc::EINVAL, "atomic operations have no flags"));
        }
        if let Some(q) = queues::way(queue)? {
            let kind = match self.operands {
                Operands::Add(_) => EXS_EVT_FETCH_ADD,
                Operands::CompareSwap(..) => EXS_EVT_COMPARE_SWAP,
            };
            let on = Call::new(kind, fd).on(&q.queue, self.old.name());
            self.post(&entry, &on, Token(self.ahandle as u64))?;
            return Ok(0);
        }
        let event =
            blocking::run(&entry.socket, Patience::Endless, |q| self.post(&entry, q, TOKEN))?;
        let value = event.old_value();
        event.into_result()?;
        if let Some(value) = value.filter(|_| !self.old.is_null()) {
            self.old.write(value)?;
        }
        Ok(0)
    }
}

/// `exs_fetch_add`
///
/// # Safety
/// As the header says: the place for the old value stays until the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_fetch_add(
    fd: c_int,
    remote: In<Remote>,
    offset: u64,
    add: u64,
    old: Out<u64>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let operands = Operands::Add(add);
        Atomic { fd, remote, offset, operands, old, flags, queue, ahandle }.run()
    })
}

/// `exs_compare_swap`
///
/// # Safety
/// As the header says: the place for the old value stays until the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_compare_swap(
    fd: c_int,
    remote: In<Remote>,
    offset: u64,
    expected: u64,
    desired: u64,
    old: Out<u64>,
    flags: c_int,
    queue: c_int,
    ahandle: AHandle,
) -> c_int {
    border(|| {
        let operands = Operands::CompareSwap(expected, desired);
        Atomic { fd, remote, offset, operands, old, flags, queue, ahandle }.run()
    })
}

/// `EXS_ATOMICS_...`
pub(crate) fn to_c(atomics: Atomics) -> c_int {
    match atomics {
        Atomics::Device => EXS_ATOMICS_DEVICE,
        Atomics::Host => EXS_ATOMICS_HOST,
        _ => EXS_ATOMICS_NONE,
    }
}
