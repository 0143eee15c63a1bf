//! Event queues.

use std::cell::RefCell;
use std::ffi::c_int;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use exs::__ffi as raw;
use exs::{EventQueue, QueueOptions, WaitPolicy};
use libc::timeval;

use crate::abi::*;
use crate::error::{Fail, Result, border};
use crate::handles::Handles;
use crate::ptr::{In, Out};
use crate::recent::Recent;
use crate::{event, fork, watch};

/// A queue, and the signal that announces its events.
pub(crate) struct Queue {
    pub(crate) queue: EventQueue,
    signal: Mutex<Announce>,
}

#[derive(Default)]
struct Announce {
    /// Number and value of the signal; None: no signal.
    signal: Option<(c_int, usize)>,
    /// The watching thread (`watch`) knows the queue.
    watched: bool,
}

thread_local! {
    static FOUND: RefCell<Recent<Queue>> = const { Recent::new() };
}

static TABLE: Handles<Queue> = Handles::new(&FOUND);

const NO_QUEUE: Fail = Fail::fixed(libc::EINVAL, "this is not the handle of an event queue");

/// The queue with this handle.
pub(crate) fn find(handle: c_int) -> Result<Arc<Queue>> {
    TABLE.get(handle).ok_or(NO_QUEUE)
}

/// The queue for an operation's event; None: the call has no queue, and blocks.
pub(crate) fn way(handle: c_int) -> Result<Option<Arc<Queue>>> {
    if handle == EXS_QHANDLE_INVALID { Ok(None) } else { find(handle).map(Some) }
}

/// Converts a time of C.
pub(crate) fn duration(t: timeval) -> Result<Duration> {
    let parts = u64::try_from(t.tv_sec).ok().zip(u32::try_from(t.tv_usec).ok());
    match parts {
        Some((s, us)) if us < 1_000_000 => Ok(Duration::new(s, us * 1000)),
        _ => {
            Err(Fail::fixed(libc::EINVAL, "a time that is negative, or has too many microseconds"))
        }
    }
}

/// `exs_init`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_init(version: c_int) -> c_int {
    border(|| {
        if version != EXS_VERSION1 {
            let why = format!("version {version} of EXS is unknown here: {EXS_VERSION1} is spoken");
            return Err(Fail::text(libc::EINVAL, why));
        }
        fork::used();
        EventQueue::new(1)?;
        Ok(0)
    })
}

/// `exs_qcreate`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qcreate(depth: c_int) -> c_int {
    border(|| {
        fork::used();
        let depth = checked_depth(depth)?;
        let queue = EventQueue::with_options(&QueueOptions::default().with_depth(depth))?;
        let made = TABLE.insert(Queue { queue, signal: Mutex::default() });
        made.ok_or(Fail::fixed(libc::ENOMEM, "too many event queues: delete some"))
    })
}

fn checked_depth(depth: c_int) -> Result<usize> {
    match usize::try_from(depth) {
        Ok(n) if (1..=EXS_QDEPTH_MAX).contains(&depth) => Ok(n),
        _ => Err(Fail::fixed(libc::EINVAL, "a queue's depth is from 1 to EXS_QDEPTH_MAX (2^20)")),
    }
}

/// `exs_qdelete`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qdelete(handle: c_int) -> c_int {
    border(|| {
        let gone = TABLE.remove_if(handle, |q| {
            // Another thread's call that is about to post, or waits, has a second reference.
            if q.queue.in_flight() > 0 || raw::is_watched(&q.queue) || Arc::strong_count(q) > 1 {
                let why = "the queue is in use: cancel what is in flight, and dequeue its events";
                return Err(Fail::fixed(libc::EBUSY, why));
            }
            Ok(())
        })?;
        let gone = gone.ok_or(NO_QUEUE)?;
        if gone.signal.lock().unwrap_or_else(PoisonError::into_inner).watched {
            watch::forget(raw::shown_fd(&gone.queue));
        }
        let mut rest = Vec::new();
        gone.queue.dequeue_into(&mut rest, 0, usize::MAX, Some(Duration::ZERO))?;
        rest.into_iter().for_each(event::discard);
        Ok(0)
    })
}

/// `exs_qfd`
///
/// # Safety
/// As the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qfd(handle: c_int) -> c_int {
    border(|| Ok(find(handle)?.queue.as_raw_fd()))
}

thread_local! {
    /// Memory for a thread's events between the queue and the program's vector; empty between calls.
    static SCRATCH: RefCell<Vec<exs::Event>> = const { RefCell::new(Vec::new()) };
}

/// `exs_qdequeue`
///
/// # Safety
/// As the header says: room for |count| events.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exs_qdequeue(
    handle: c_int,
    vec: Out<Event>,
    count: c_int,
    timeout: In<timeval>,
) -> c_int {
    border(|| {
        let q = find(handle)?;
        if count == 0 {
            return Ok(0);
        }
        if count.unsigned_abs() > EXS_EVTVEC_MAX.unsigned_abs() {
            return Err(Fail::fixed(libc::EINVAL, "more than EXS_EVTVEC_MAX events at once"));
        }
        vec.check()?;
        let timeout = if timeout.is_null() { None } else { Some(duration(timeout.read()?)?) };
        let max = count.unsigned_abs() as usize;
        let min = if count < 0 { max } else { 1 };
        // A thread that ends has no scratch any more.
        let mut events = SCRATCH.try_with(RefCell::take).unwrap_or_default();
        let result = raw::dequeue_exact(&q.queue, &mut events, min, max, timeout);
        let mut stored = 0;
        for event in events.drain(..) {
            vec.write_at(stored, event::to_c(event))?;
            stored += 1;
        }
        let _ = SCRATCH.try_with(|s| s.replace(events));
        result?;
        Ok(c_int::try_from(stored).unwrap_or(c_int::MAX))
    })
}

/// The fixed part of `exs_qmodify`, which has a `...` in C: see `c/variadic.c`.
///
/// # Safety
/// As the header says: `number` or `place` is what the attribute asks for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn exsffi_qmodify(
    handle: c_int,
    attribute: c_int,
    number: c_int,
    place: Out<c_int>,
) -> c_int {
    border(|| {
        let q = find(handle)?;
        match attribute {
            EXS_QATTR_DEPTH => q.queue.set_depth(checked_depth(number)?)?,
            EXS_QATTR_EVENTS => {
                place.write(c_int::try_from(q.queue.len()).unwrap_or(c_int::MAX))?
            }
            EXS_QATTR_WAIT => q.queue.set_wait_policy(match number {
                EXS_WAIT_ADAPTIVE => WaitPolicy::Adaptive,
                EXS_WAIT_NOTIFY => WaitPolicy::Notify,
                EXS_WAIT_BUSY_POLL => WaitPolicy::BusyPoll,
                _ => {
                    return Err(Fail::fixed(
                        libc::EINVAL,
                        "there are three ways to wait: EXS_WAIT_...",
                    ));
                }
            }),
            EXS_QATTR_SIGNAL => set_signal(handle, &q, place.cast::<Signal>().read()?)?,
            _ => return Err(Fail::fixed(libc::EINVAL, "a queue has no such attribute")),
        }
        Ok(0)
    })
}

fn set_signal(handle: c_int, q: &Queue, signal: Signal) -> Result<()> {
    let mut state = q.signal.lock().unwrap_or_else(PoisonError::into_inner);
    match signal.exs_sig_action {
        EXS_SIG_DISABLE => state.signal = None,
        EXS_SIG_ENABLE => {
            let signo = signal.exs_sig_signo;
            if !(1..=libc::SIGRTMAX()).contains(&signo) {
                return Err(Fail::fixed(libc::EINVAL, "there is no signal with this number"));
            }
            state.signal = Some((signo, signal.exs_sig_value));
            if !state.watched {
                watch::queue(raw::shown_fd(&q.queue), handle)?;
                state.watched = true;
            } else if !q.queue.is_empty() {
                send(signo, signal.exs_sig_value);
            }
        }
        _ => return Err(Fail::fixed(libc::EINVAL, "EXS_SIG_ENABLE or EXS_SIG_DISABLE")),
    }
    Ok(())
}

/// Sends the signal of a queue that was empty and has got an event.
pub(crate) fn announce(handle: c_int) {
    // Not `get`: the signal's handler may take the last event and delete the queue.
    TABLE.look(handle, |q| {
        let signal = q.signal.lock().unwrap_or_else(PoisonError::into_inner).signal;
        // If another thread has emptied the queue since, no signal is due.
        if let Some((signo, value)) = signal
            && !q.queue.is_empty()
        {
            send(signo, value);
        }
    });
}

fn send(signo: c_int, value: usize) {
    // SAFETY: takes no pointers.
    let pid = unsafe { libc::getpid() };
    let value = libc::sigval { sival_ptr: value as *mut libc::c_void };
    // SAFETY: takes no pointers that the kernel follows. It fails only if too many signals
    // are queued, and then one is on its way already.
    unsafe { libc::sigqueue(pid, signo, value) };
}
