use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{sleep, spawn};
use std::time::{Duration, Instant};

use super::Dice;

/// A TCP proxy that delays bytes in both directions, keeps their order and does not limit their rate.
///
/// The end of a stream is delayed as well, and passed on. The connections end with the handle.
pub(crate) struct DelayProxy {
    address: SocketAddr,
    state: Arc<State>,
}

struct State {
    target: SocketAddr,
    delay: Duration,
    jitter: Duration,
    is_over: AtomicBool,
    open: Mutex<Vec<Weak<TcpStream>>>,
}

/// Bytes, and the time at which they are due; none at the end of the stream.
type Chunk = (Instant, Vec<u8>);

/// Chunks on their way in one direction. A reader waits for room, as TCP does.
const CHUNKS: usize = 4096;

impl DelayProxy {
    /// Forwards to `target`. Each chunk takes `delay`, and up to `jitter` more.
    pub(crate) fn start(target: SocketAddr, delay: Duration, jitter: Duration) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("it listens");
        let (is_over, open) = (AtomicBool::new(false), Mutex::default());
        let state = Arc::new(State { target, delay, jitter, is_over, open });
        let shared = Arc::clone(&state);
        spawn(move || {
            for (number, client) in listener.incoming().map_while(Result::ok).enumerate() {
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // Without a target the client's connection is closed.
                let _ = shared.connect(client, number);
            }
        });
        Self { address, state }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for DelayProxy {
    fn drop(&mut self) {
        self.state.is_over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(self.address));
        for stream in self.state.open().iter().filter_map(Weak::upgrade) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl State {
    fn open(&self) -> std::sync::MutexGuard<'_, Vec<Weak<TcpStream>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, client: TcpStream, number: usize) -> io::Result<()> {
        let streams = [client, TcpStream::connect(self.target)?].map(Arc::new);
        for stream in &streams {
            stream.set_nodelay(true)?;
        }
        let mut open = self.open();
        open.retain(|stream| stream.strong_count() > 0);
        open.extend(streams.iter().map(Arc::downgrade));
        drop(open);
        let [client, target] = &streams;
        for (direction, [from, to]) in [[client, target], [target, client]].into_iter().enumerate() {
            let (sender, receiver) = sync_channel(CHUNKS);
            let dice = Dice::new(self.delay.as_nanos() as u64, 2 * number + direction);
            let (state, source) = (Arc::clone(self), Arc::clone(from));
            spawn(move || state.read(&source, &sender, dice));
            let (source, sink) = (Arc::clone(from), Arc::clone(to));
            spawn(move || write(&sink, &source, &receiver));
        }
        Ok(())
    }

    /// Reads until the stream ends. A chunk never overtakes an earlier one.
    fn read(&self, mut source: &TcpStream, sender: &SyncSender<Chunk>, mut dice: Dice) {
        let mut due = Instant::now();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            // A reset ends the stream too.
            let read = source.read(&mut buffer).unwrap_or(0);
            let jitter = Duration::from_nanos(dice.within(0..self.jitter.as_nanos() as u64 + 1));
            due = due.max(Instant::now() + self.delay + jitter);
            if sender.send((due, buffer[..read].to_vec())).is_err() || read == 0 {
                return;
            }
        }
    }
}

/// Writes each chunk when it is due, and passes the end of the stream on.
fn write(mut sink: &TcpStream, source: &TcpStream, receiver: &Receiver<Chunk>) {
    for (due, bytes) in receiver {
        sleep(due.saturating_duration_since(Instant::now()));
        if bytes.is_empty() {
            let _ = sink.shutdown(Shutdown::Write);
        } else if sink.write_all(&bytes).is_err() {
            let _ = source.shutdown(Shutdown::Both);
            return;
        }
    }
}
