//! The calls that begin and end connections, and those that end operations.

use std::net::{Shutdown, SocketAddr};

use super::{EventQueue, OpError, Socket, Token};
use crate::progress::{Error, Interest, ListenEnd, Op, Shard};

impl Socket {
    /// Connects. [`Completion::Connect`](super::Completion::Connect) says that both ends are there.
    /// Operations posted before that event are refused as on a socket that is not connected (ENOTCONN).
    ///
    /// A connect that fails or is cancelled leaves the socket as it was: it may be used for another
    /// attempt. [`Options::connect_timeout`](crate::Options) limits its time.
    ///
    /// The connection lives in the shard of `queue` ([`EventQueue::shard`]). If one of the first operations on
    /// it names a queue of another shard, it goes there, except over RDMA devices.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// let again = Socket::stream()?;
    /// again.connect(&queue, Token(1), listener.local_addr()?)?;
    /// queue.next()?.into_completion()?; // it is connected, or this is why not
    /// assert_eq!(again.peer_addr()?, listener.local_addr()?);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::State`] if it is connected or listening; [`Error::WouldBlock`] if the queue is full.
    /// The event has [`Error::Connect`], [`Error::Refused`] or [`Error::NoDevice`].
    pub fn connect(&self, queue: &EventQueue, token: Token, addr: SocketAddr) -> Result<(), Error> {
        self.post_bare(queue, || {
            self.handle().connect(queue.core(), |e, id, call| {
                e.connect(id, &self.ticket(queue, token), addr, call.now())
            })
        })
    }

    /// Accepts one connection: [`Completion::Accept`](super::Completion::Accept) brings the socket and
    /// the address of its peer.
    ///
    /// Several accepts may wait. Connections go to those of one shard in the order in which the accepts
    /// were posted, and to the shards in turn. A cancelled accept takes no connection: the next one
    /// does. A connection lives in the shard of the queue that its accept names
    /// ([`EventQueue::shard`]), so threads that accept from one listener, each with a queue of its own,
    /// share nothing afterwards. If one of the first operations on it names a queue of another
    /// shard, it goes there, so one thread may accept for others. By RDMA devices it lives in the shard of the listener,
    /// and stays there. A connection that no program takes, as its event is dropped, is reset.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// listener.accept(&queue, Token(1))?;
    /// let another = Socket::stream()?;
    /// another.blocking().connect(listener.local_addr()?)?;
    /// if let Completion::Accept { socket, peer, .. } = queue.next()?.into_completion()? {
    ///     assert_eq!(peer, another.local_addr()?);
    ///     socket.blocking().send_all(b"welcome")?;
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::State`] if it is not listening; [`Error::WouldBlock`] if the queue is full. The event
    /// has an error if the socket is closed, or stops to listen, before a connection comes.
    pub fn accept(&self, queue: &EventQueue, token: Token) -> Result<(), Error> {
        self.accept_in(queue, token, queue.shard())
    }

    /// As `accept`; the connection is to live in the shard `home`.
    pub(super) fn accept_in(
        &self,
        queue: &EventQueue,
        token: Token,
        home: Shard,
    ) -> Result<(), Error> {
        self.post_bare(queue, || {
            self.handle().accept(queue.core(), &self.ticket(queue, token), home)
        })
    }

    /// Waits until the socket is ready for what is asked, or broken:
    /// [`Completion::Poll`](super::Completion::Poll) says which. It moves nothing, and is seldom needed,
    /// as the events of other operations say when something has happened. Each poll has one event.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// server.poll(&queue, Token(1), Interest::READABLE)?;
    /// client.blocking().send_all(b"hello")?;
    /// assert!(queue.next()?.readiness().readable);
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the queue is full.
    pub fn poll(&self, queue: &EventQueue, token: Token, want: Interest) -> Result<(), Error> {
        self.post_bare(queue, || {
            self.handle()
                .post(queue.core(), |e, id, _| e.post_poll(id, &self.ticket(queue, token), want))
        })
    }

    /// Ends one direction, or both.
    ///
    /// Of the sending direction: the peer sees the end after all that was posted before, and the event
    /// comes when all of that has left. Sends posted from now on are refused with EPIPE. A shutdown
    /// that is cancelled before its turn never was.
    ///
    /// Of the receiving direction: receives that wait, and those posted from now on, end with 0 bytes.
    /// Data that the peer sends stay in the ring, and the peer stops when the ring is full.
    ///
    /// A listener whose receiving direction ends listens no more: accepts that wait end with EINVAL, its
    /// backlog is reset, and it may listen again.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.send(&queue, Token(1), *b"the last word")?;
    /// client.shutdown(&queue, Token(2), Shutdown::Write)?;
    /// for event in queue.dequeue_at_least(2, 2, None)? {
    ///     event.into_completion()?;
    /// }
    /// let mut all = Vec::new();
    /// std::io::Read::read_to_end(&mut server.blocking(), &mut all).unwrap();
    /// assert_eq!(all, b"the last word");
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the queue is full, or not connected (ENOTCONN).
    pub fn shutdown(&self, queue: &EventQueue, token: Token, how: Shutdown) -> Result<(), Error> {
        self.post_bare(queue, || {
            if how != Shutdown::Write {
                self.handle().end_branches(ListenEnd::Shut);
            }
            self.handle().post(queue.core(), |e, id, call| {
                e.shutdown(id, &self.ticket(queue, token), how, call.now())
            })
        })
    }

    /// Closes. Data sent before are delivered first, within [`Options::linger`](crate::Options);
    /// receives that wait are cancelled, and posts from now on are refused.
    ///
    /// The event says that the connection is over. Its error says that something could not be
    /// delivered: ETIMEDOUT if the time was up, ECONNRESET if the peer has gone. A close cannot be
    /// cancelled; [`Socket::abort`] cuts it short.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.send(&queue, Token(1), *b"goodbye")?;
    /// client.close(&queue, Token(2))?;
    /// let mut text = [0; 7];
    /// server.blocking().recv_exact(&mut text)?;
    /// for event in queue.dequeue_at_least(2, 2, None)? {
    ///     event.into_completion()?; // all of it was delivered
    /// }
    /// # Ok::<(), exs::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the queue is full, or closed already.
    pub fn close(&self, queue: &EventQueue, token: Token) -> Result<(), Error> {
        self.post_bare(queue, || {
            self.handle().end_branches(ListenEnd::Closed);
            self.handle().post(queue.core(), |e, id, call| {
                e.close(id, Some(&self.ticket(queue, token)), call.now())
            })
        })
    }

    /// As `close`, whose event has its place in the queue already.
    pub(super) fn close_booked(&self, queue: &EventQueue, token: Token) -> Result<(), Error> {
        self.handle().end_branches(ListenEnd::Closed);
        self.handle().post(queue.core(), |e, id, call| {
            e.close(id, Some(&self.ticket(queue, token)), call.now())
        })
    }

    /// Asks those operations to end whose events go to this queue.
    pub(super) fn cancel_on(&self, queue: &EventQueue) -> usize {
        let core = queue.core();
        self.cancel_where(|op| op.goes_to(core))
    }

    /// Asks the chosen operations to end, in all shards.
    fn cancel_where(&self, chosen: impl Fn(&Op) -> bool) -> usize {
        let at_branches = self.handle().each_branch(|e, id, now| e.cancel_where(id, now, &chosen));
        let here = self.handle().call(|e, id, now| e.cancel_where(id, now, &chosen));
        at_branches.into_iter().chain([here]).map(|asked| asked.unwrap_or(0)).sum()
    }

    /// Asks the operations with this token (`None`: all) to end, but for those whose
    /// events go to the queues that are spared. Of these only a connect ends with all.
    pub(super) fn cancel_but(&self, token: Option<Token>, spared: &[&EventQueue]) -> usize {
        self.cancel_where(|op| {
            let spared = || spared.iter().any(|q| op.goes_to(q.core()));
            match token {
                Some(t) => op.is_named(t.0) && !spared(),
                None => op.is_connect() || !spared(),
            }
        })
    }

    /// Asks the operations with this token to end; returns how many there were. Each
    /// still has its one event: cancelled, or done if that was faster.
    ///
    /// A send or an RDMA WRITE that is cancelled on its way moves no more: the peer gets the
    /// bytes that the event names ([`Event::bytes`](crate::Event::bytes)). Of a message that is
    /// cancelled it gets nothing; one on its way ends as if nothing had been said. A receive that is
    /// cancelled keeps the bytes that had come, and the event names them; the next receive goes on
    /// behind them. If the connection ends first, the event gives the reason of that, and how much has
    /// arrived is not known.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// server.recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)?;
    /// assert_eq!(server.cancel(Token(1)), 1);
    /// let failed = queue.next()?.into_completion().unwrap_err();
    /// assert!(failed.error.is_cancelled());
    /// assert_eq!(failed.buffers[0].len(), 100); // it comes back all the same
    /// # Ok::<(), exs::Error>(())
    /// ```
    pub fn cancel(&self, token: Token) -> usize {
        self.cancel_where(|op| op.is_named(token.0))
    }

    /// As [`Socket::cancel`], for every operation of the socket.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// server.recv(&queue, Token(1), vec![0; 100], RecvFlags::NONE)?;
    /// server.poll(&queue, Token(2), Interest::READABLE)?;
    /// assert_eq!(server.cancel_all(), 2);
    /// assert_eq!(queue.dequeue_at_least(2, 2, None)?.len(), 2);
    /// # Ok::<(), exs::Error>(())
    /// ```
    pub fn cancel_all(&self) -> usize {
        self.cancel_where(|_| true) + self.cancel_pass()
    }

    /// Cancels the call of a thread that waits for data without a receive. Returns the number of such
    /// calls.
    fn cancel_pass(&self) -> usize {
        let waits = self.handle().call(|e, id, _| e.end_pass(id, Err(OpError::Cancelled)));
        usize::from(waits)
    }

    /// Cuts the connection at once. Every operation ends with an error, and the peer sees ECONNRESET:
    /// what was sent and not received may be lost. It does not wait.
    ///
    /// ```
    #[doc = include_str!("examples/streams.txt")]
    /// client.abort();
    /// let reset = server.blocking().recv(&mut [0; 10]).unwrap_err();
    /// assert_eq!(reset.kind(), std::io::ErrorKind::ConnectionReset);
    /// # Ok::<(), exs::Error>(())
    /// ```
    pub fn abort(&self) {
        // A socket that is gone cannot be cut.
        let _ = self.handle().call(|e, id, now| e.abort(id, now));
    }
}
