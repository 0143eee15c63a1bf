//! A small server of the protocol of Redis (RESP), for clients over any stream.
//!
//! It has the commands that its clients here use: PING, ECHO, GET, SET, DEL, INCR, INCRBY, HELLO,
//! SUBSCRIBE, UNSUBSCRIBE and PUBLISH. Commands that come together are answered together.

use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exs::aio::AsyncListener;
use tokio::io::{
    AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, BufWriter,
    split,
};
use tokio::sync::mpsc::{self, Receiver, Sender};

/// The largest value: that of Redis.
const LARGEST: usize = 512 << 20;

/// The parts of a command, at most.
const PARTS: usize = 1 << 20;

/// The answers that wait for a client. A subscriber that is further behind misses messages.
const WAITING: usize = 4096;

type Words = Vec<Vec<u8>>;

/// The values and the subscribers.
#[derive(Clone, Debug, Default)]
pub struct Database {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    values: HashMap<Vec<u8>, Vec<u8>>,
    channels: HashMap<Vec<u8>, Vec<Sender<Vec<u8>>>>,
}

impl Database {
    /// Serves the connections of a listener, until its accepts fail.
    ///
    /// # Errors
    /// That of the accept.
    pub async fn serve(self, listener: AsyncListener) -> io::Result<()> {
        loop {
            let (stream, peer) = listener.accept().await?;
            let database = self.clone();
            tokio::spawn(async move {
                if let Err(e) = database.serve_client(stream).await {
                    eprintln!("{peer}: {e}");
                }
            });
        }
    }

    /// Serves one client, until it ends its direction.
    ///
    /// # Errors
    /// What the stream says, and [`ErrorKind::InvalidData`] for anything but commands.
    pub async fn serve_client<S: AsyncRead + AsyncWrite + Send + 'static>(
        &self,
        stream: S,
    ) -> io::Result<()> {
        let (reader, writer) = split(stream);
        let (answers, waiting) = mpsc::channel(WAITING);
        let writer = tokio::spawn(write(writer, waiting));
        let mut client = Client { database: self.clone(), answers, resp3: false };
        let mut reader = BufReader::new(reader);
        let ended = loop {
            match read_command(&mut reader).await {
                Ok(Some(words)) => {
                    let answer = client.answer(&words);
                    if client.answers.send(answer).await.is_err() {
                        break Ok(());
                    }
                }
                Ok(None) => break Ok(()),
                Err(e) => break Err(e),
            }
        };
        self.forget(&client.answers);
        drop(client);
        ended.and(writer.await?)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget(&self, client: &Sender<Vec<u8>>) {
        for subscribers in self.state().channels.values_mut() {
            subscribers.retain(|other| !other.same_channel(client));
        }
    }
}

/// Writes answers, and flushes when no more wait.
async fn write<W: AsyncWrite + Unpin>(writer: W, mut waiting: Receiver<Vec<u8>>) -> io::Result<()> {
    let mut writer = BufWriter::new(writer);
    while let Some(answer) = waiting.recv().await {
        writer.write_all(&answer).await?;
        while let Ok(answer) = waiting.try_recv() {
            writer.write_all(&answer).await?;
        }
        writer.flush().await?;
    }
    writer.shutdown().await
}

/// One client.
struct Client {
    database: Database,
    answers: Sender<Vec<u8>>,
    /// The client speaks RESP3, in which messages of channels are marked.
    resp3: bool,
}

impl Client {
    fn answer(&mut self, words: &[Vec<u8>]) -> Vec<u8> {
        let [command, rest @ ..] = words else { return error("there is no command") };
        match (&command.to_ascii_uppercase()[..], rest) {
            (b"PING", []) => b"+PONG\r\n".to_vec(),
            (b"PING" | b"ECHO", [text]) => bulk(text),
            (b"HELLO", [version, ..]) => {
                self.resp3 = &version[..] == b"3";
                let kind = if self.resp3 { "%1" } else { "*2" };
                format!("{kind}\r\n$5\r\nproto\r\n:{}\r\n", if self.resp3 { 3 } else { 2 }).into()
            }
            (b"GET", [key]) => match self.database.state().values.get(key) {
                Some(value) => bulk(value),
                None => b"$-1\r\n".to_vec(),
            },
            (b"SET", [key, value]) => {
                self.database.state().values.insert(key.clone(), value.clone());
                b"+OK\r\n".to_vec()
            }
            (b"DEL", keys) => {
                let mut state = self.database.state();
                number(keys.iter().filter(|key| state.values.remove(*key).is_some()).count())
            }
            (b"INCR", [key]) => self.increment(key, b"1"),
            (b"INCRBY", [key, by]) => self.increment(key, by),
            (b"SUBSCRIBE", channels) => self.subscribe(channels),
            (b"UNSUBSCRIBE", channels) => self.unsubscribe(channels),
            (b"PUBLISH", [channel, message]) => self.publish(channel, message),
            _ => error(&format!("unknown command {}", String::from_utf8_lossy(command))),
        }
    }

    fn increment(&self, key: &[u8], by: &[u8]) -> Vec<u8> {
        let mut state = self.database.state();
        let old = state.values.get(key).map_or(Some(0), |old| integer(old));
        let Some(new) = old.zip(integer(by)).and_then(|(old, by)| old.checked_add(by)) else {
            return error("value is not an integer or out of range");
        };
        state.values.insert(key.to_vec(), new.to_string().into());
        format!(":{new}\r\n").into()
    }

    fn subscribe(&self, channels: &[Vec<u8>]) -> Vec<u8> {
        let mut answer = Vec::new();
        for (count, channel) in (1..).zip(channels) {
            let mut state = self.database.state();
            let subscribers = state.channels.entry(channel.clone()).or_default();
            subscribers.retain(|other| !other.same_channel(&self.answers));
            subscribers.push(self.answers.clone());
            answer.extend(self.push(&[bulk(b"subscribe"), bulk(channel), number(count)]));
        }
        answer
    }

    fn unsubscribe(&self, channels: &[Vec<u8>]) -> Vec<u8> {
        let mut answer = Vec::new();
        for channel in channels {
            let mut state = self.database.state();
            if let Some(subscribers) = state.channels.get_mut(channel) {
                subscribers.retain(|other| !other.same_channel(&self.answers));
            }
            answer.extend(self.push(&[bulk(b"unsubscribe"), bulk(channel), number(0)]));
        }
        answer
    }

    fn publish(&self, channel: &[u8], message: &[u8]) -> Vec<u8> {
        let text = self.push(&[bulk(b"message"), bulk(channel), bulk(message)]);
        let state = self.database.state();
        let subscribers = state.channels.get(channel).map_or(&[][..], |all| &all[..]);
        number(subscribers.iter().filter(|client| client.try_send(text.clone()).is_ok()).count())
    }

    /// An answer that no command asked for, or that is like one.
    fn push(&self, parts: &[Vec<u8>]) -> Vec<u8> {
        let kind = if self.resp3 { '>' } else { '*' };
        let mut answer = format!("{kind}{}\r\n", parts.len()).into_bytes();
        answer.extend(parts.concat());
        answer
    }
}

fn bulk(bytes: &[u8]) -> Vec<u8> {
    let mut answer = format!("${}\r\n", bytes.len()).into_bytes();
    answer.extend_from_slice(bytes);
    answer.extend_from_slice(b"\r\n");
    answer
}

fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

fn number(n: usize) -> Vec<u8> {
    format!(":{n}\r\n").into()
}

fn error(why: &str) -> Vec<u8> {
    format!("-ERR {why}\r\n").into()
}

/// Reads a command. None: the client has ended its direction.
async fn read_command<R: AsyncBufReadExt + Unpin>(reader: &mut R) -> io::Result<Option<Words>> {
    let Some(parts) = read_number(reader, b'*', PARTS).await? else { return Ok(None) };
    let mut words = Words::new();
    for _ in 0..parts {
        let len = read_number(reader, b'$', LARGEST).await?;
        let len = len.ok_or(ErrorKind::UnexpectedEof)?;
        let mut word = vec![0; len + 2];
        reader.read_exact(&mut word).await?;
        word.truncate(len);
        words.push(word);
    }
    Ok(Some(words))
}

/// Reads a line of a kind and a number up to `most`. None: the stream has ended before it.
async fn read_number<R: AsyncBufReadExt + Unpin>(
    reader: &mut R,
    kind: u8,
    most: usize,
) -> io::Result<Option<usize>> {
    let mut line = Vec::new();
    // A line that is longer is none of ours.
    (&mut *reader).take(32).read_until(b'\n', &mut line).await?;
    if line.is_empty() {
        return Ok(None);
    }
    let number = std::str::from_utf8(&line).ok().and_then(|line| {
        line.strip_suffix("\r\n")?.strip_prefix(char::from(kind))?.parse::<usize>().ok()
    });
    let wrong = || io::Error::new(ErrorKind::InvalidData, "this is no command of RESP");
    number.filter(|n| *n <= most).ok_or_else(wrong).map(Some)
}
