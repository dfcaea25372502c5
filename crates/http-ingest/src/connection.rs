//! One HTTP connection.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tenbin_pending::WriteDeadline;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, timeout_at};

use crate::answer::{self, Answer, Refusal};
use crate::credentials::Credentials;
use crate::mqtt::Mqtt;
use crate::places::Place;
use crate::request::Asked;
use crate::upstream::Upstream;
use crate::{Settings, body};

/// Largest head of a request, in bytes.
const HEAD_BYTES_MAX: usize = 8 * 1024;

/// A connection's requests, one at a time.
struct Connection {
    settings: Arc<Settings>,
    place: Arc<Place>,
    mqtt: Mutex<Mqtt>,
}

/// Serves a connection until its end, or until the server stops and its request is answered. `first` returns the stream once
/// it can be read.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send>(
    first: impl Future<Output = io::Result<S>>,
    peer: SocketAddr,
    place: Arc<Place>,
    settings: Arc<Settings>,
    upstream: Upstream,
    mut stopped: watch::Receiver<()>,
) {
    let evicted = place.evicted();
    let served = async {
        // A silent connection has neither buffers nor the memory of their future.
        let readable = tokio::select! {
            readable = tokio::time::timeout(settings.request_time, first) => readable.map_err(io::Error::from).flatten(),
            _ = stopped.changed() => return,
        };
        if let Ok(stream) = readable {
            let connection = Connection { settings, place, mqtt: Mutex::new(Mqtt::new(upstream, peer)) };
            Box::pin(serve_requests(stream, peer, Arc::new(connection), stopped)).await;
        }
    };
    tokio::select! {
        () = served => {}
        () = evicted => tracing::info!(%peer, "HTTP connection closed before its login, for another one"),
    }
}

async fn serve_requests(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    peer: SocketAddr,
    connection: Arc<Connection>,
    mut stopped: watch::Receiver<()>,
) {
    let time = connection.settings.request_time;
    let service = service_fn(move |request| {
        let connection = Arc::clone(&connection);
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    // hyper calls the service for the next request once it has written the answer to the last one, and reads at most
    // one buffer ahead. So a pipeline takes no memory.
    let mut served = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(time)
            .max_buf_size(HEAD_BYTES_MAX)
            .half_close(true)
            .serve_connection(TokioIo::new(WriteDeadline::lingering(stream, time)), service)
    );
    let ended = tokio::select! {
        ended = &mut served => ended,
        _ = stopped.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "HTTP connection ended");
    }
}

impl Connection {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        self.handle(request).await.unwrap_or_else(Refusal::into_answer)
    }

    async fn handle(&self, request: Request<Incoming>) -> Result<Answer, Refusal> {
        let deadline = Instant::now() + self.settings.request_time;
        let maximum = self.settings.body_bytes_maximum;
        let (head, body) = request.into_parts();
        let asked = Asked::read(&head)?;
        let credentials = Credentials::read(&head.headers)?;
        body::check(&body, maximum)?;
        let mut mqtt = self.mqtt.lock().await;
        // Only a client that may connect may send a body.
        in_time(deadline, mqtt.connect(credentials), || no_answer("CONNECT")).await?;
        self.place.is_logged_in();
        let mut held = self.place.hold();
        let done = match asked {
            Asked::Publish(publish) => {
                let late = || Refusal::new(StatusCode::REQUEST_TIMEOUT, "the body took too long");
                let payload = in_time(deadline, body::receive(body, maximum, &mut held), late).await?;
                let message = publish.message(payload)?;
                let late = || no_answer("the message, which may have been published");
                in_time(deadline, mqtt.publish(message), late).await.map(|()| answer::published())
            }
            Asked::Read(topic) => {
                // Its size is not known before it is there.
                let room = async {
                    held.wait_for(maximum).await;
                    Ok(())
                };
                in_time(deadline, room, || Refusal::no_room(maximum)).await?;
                let read = in_time(deadline, mqtt.retained(&topic), || no_answer("SUBSCRIBE")).await;
                read.and_then(|message| {
                    let missing = || format!("no retained message of {:?}", topic.text().as_str());
                    let message = message.ok_or_else(|| Refusal::new(StatusCode::NOT_FOUND, missing()))?;
                    held.shrink_to(message.payload.len());
                    Ok(answer::retained(message, held))
                })
            }
        };
        if Instant::now() >= deadline {
            mqtt.forget();
        }
        done
    }
}

async fn in_time<T>(
    deadline: Instant,
    operation: impl Future<Output = Result<T, Refusal>>,
    late: impl FnOnce() -> Refusal,
) -> Result<T, Refusal> {
    timeout_at(deadline, operation).await.unwrap_or_else(|_| Err(late()))
}

fn no_answer(to: &str) -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, format!("the broker did not answer {to} in time"))
}
