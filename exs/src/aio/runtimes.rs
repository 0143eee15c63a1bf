//! The reactors of the tokio runtimes of the process.
//!
//! The sockets of a reactor share the lock of its shard, and the turns of its driver. A worker that serves
//! small messages over the software RNIC holds that lock for about a tenth of its time. So few workers
//! lose little by sharing a reactor, and many would wait for each other. Each reactor takes some
//! descriptors and a shard's memory. So a runtime has one reactor for each [`WORKERS`] workers. Its
//! sockets take the reactors in turn, and a listener accepts by all of them. `docs/bench/NOTES.md` has
//! the figures.
//!
//! A reactor starts when a socket, or a listener, first needs it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tokio::runtime::{Handle, Id};

use super::crowd::Crowd;
use super::driver;
use super::reactor::AioReactor;
use crate::api::Error;
use crate::sys::ProcessLock;

/// The workers that share a reactor.
const WORKERS: usize = 4;

/// The reactors of the runtimes of this process. A reactor lives as long as its driver or a socket.
static RUNTIMES: ProcessLock<Option<HashMap<Id, RuntimeReactors>>> = ProcessLock::new(None);

/// The reactors of a runtime.
struct RuntimeReactors {
    /// A place stays empty until a socket needs its reactor.
    places: Vec<Weak<AioReactor>>,
    /// The place of the next socket's reactor.
    turn: usize,
    /// The busy streams of all of them.
    crowd: Arc<Crowd>,
}

impl RuntimeReactors {
    /// For a runtime with this many workers.
    fn new(workers: usize) -> RuntimeReactors {
        let places = (0..workers.div_ceil(WORKERS)).map(|_| Weak::new()).collect();
        RuntimeReactors { places, turn: 0, crowd: Arc::new(Crowd::new(workers)) }
    }

    /// The reactor whose turn it is. It starts if its place is empty. The calling thread is in the
    /// runtime.
    fn next(&mut self, handle: &Handle) -> Result<Arc<AioReactor>, Error> {
        let place = &mut self.places[self.turn];
        let reactor = match place.upgrade() {
            Some(reactor) => reactor,
            None => driver::start(handle, Arc::clone(&self.crowd))?,
        };
        *place = Arc::downgrade(&reactor);
        self.turn = (self.turn + 1) % self.places.len();
        Ok(reactor)
    }

    fn is_over(&self) -> bool {
        self.places.iter().all(|place| place.strong_count() == 0)
    }
}

/// Calls `f` with the reactors of a runtime. The calling thread is in that runtime.
fn with_reactors<T>(handle: &Handle, f: impl FnOnce(&mut RuntimeReactors) -> T) -> T {
    let mut runtimes = RUNTIMES.lock();
    let runtimes = runtimes.get_or_insert_default();
    if !runtimes.contains_key(&handle.id()) {
        runtimes.retain(|_, reactors| !reactors.is_over());
    }
    let new = || RuntimeReactors::new(handle.metrics().num_workers());
    f(runtimes.entry(handle.id()).or_insert_with(new))
}

/// The reactor for the next socket of the calling thread. None: the thread is in no runtime.
pub(super) fn next_here() -> Option<Result<Arc<AioReactor>, Error>> {
    let handle = Handle::try_current().ok()?;
    Some(with_reactors(&handle, |reactors| reactors.next(&handle)))
}

/// All reactors of the runtime of the calling thread: those that can start, if not all can. None: the
/// thread is in no runtime.
pub(super) fn all_here() -> Option<Result<Vec<Arc<AioReactor>>, Error>> {
    let handle = Handle::try_current().ok()?;
    Some(with_reactors(&handle, |reactors| {
        let (mut all, mut failed) = (Vec::new(), None);
        for _ in 0..reactors.places.len() {
            match reactors.next(&handle) {
                Ok(reactor) => all.push(reactor),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if all.is_empty() => Err(error),
            _ => Ok(all),
        }
    }))
}

/// The reactor for the next connection that a socket of `reactor` accepts: one of the same runtime if
/// the calling thread is there.
pub(super) fn next_beside(reactor: &Arc<AioReactor>) -> Arc<AioReactor> {
    let next = if is_here(reactor) { next_here() } else { None };
    next.and_then(Result::ok).unwrap_or_else(|| Arc::clone(reactor))
}

/// True if the calling thread is in the runtime that has this reactor.
pub(super) fn is_here(reactor: &AioReactor) -> bool {
    Handle::try_current().is_ok_and(|handle| reactor.runtime() == Some(handle.id()))
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::collections::HashSet;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    fn runtime(workers: usize) -> Runtime {
        Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
    }

    /// The address of a reactor, which tells it from others that live.
    fn name(reactor: &Arc<AioReactor>) -> usize {
        Arc::as_ptr(reactor).addr()
    }

    #[test]
    fn sockets_take_the_reactors_of_their_runtime_in_turn() {
        for (workers, reactors) in [(1, 1), (WORKERS, 1), (WORKERS + 1, 2), (3 * WORKERS, 3)] {
            let runtime = runtime(workers);
            let _inside = runtime.enter();
            let next = || next_here().unwrap().unwrap();
            let turn: Vec<_> = (0..2 * reactors).map(|_| next()).collect();
            let names: Vec<_> = turn.iter().map(name).collect();
            assert_eq!(names.iter().collect::<HashSet<_>>().len(), reactors, "{workers}");
            assert_eq!(names[..reactors], names[reactors..], "{workers}");
            assert!(turn.iter().all(|reactor| is_here(reactor)));
        }
    }

    #[test]
    fn a_listener_has_all_reactors_of_its_runtime() {
        let runtime = runtime(3 * WORKERS);
        let _inside = runtime.enter();
        let first = next_here().unwrap().unwrap();
        let all = all_here().unwrap().unwrap();
        let names: HashSet<_> = all.iter().map(name).collect();
        assert_eq!(names.len(), 3);
        assert!(names.contains(&name(&first)));
    }

    #[test]
    fn an_accept_elsewhere_stays_with_its_socket() {
        let (one, other) = (runtime(2 * WORKERS), runtime(2 * WORKERS));
        let reactor = {
            let _inside = one.enter();
            next_here().unwrap().unwrap()
        };
        assert_eq!(name(&next_beside(&reactor)), name(&reactor), "in no runtime");
        {
            let _inside = other.enter();
            assert!(!is_here(&reactor));
            assert_eq!(name(&next_beside(&reactor)), name(&reactor), "in another one");
        }
        let _inside = one.enter();
        let next = next_beside(&reactor);
        assert_ne!(name(&next), name(&reactor));
        assert_eq!(name(&next_beside(&reactor)), name(&reactor), "they take turns");
    }
}
