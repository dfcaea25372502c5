//! A metadata request of Kafka, which tells the leader of a partition.
//!
//! Kafka's own programs start a JVM, which takes seconds; a fault on a role must begin at its time.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Node number of the broker that leads partition 0 of `topic`, by the first of the brokers at `doors` (`HOST:PORT`) that
/// knows it; `None` while none does.
///
/// # Errors
/// No broker answers, or all answer with errors, as for a topic that does not exist.
pub async fn leader(doors: &[String], topic: &str) -> Result<Option<i32>, String> {
    let mut last = Err("no broker is known".to_owned());
    for door in doors {
        // A broker that has just started, or is cut off, knows less than the others.
        let found = match tokio::time::timeout(PATIENCE, ask(door, topic)).await {
            Ok(Ok(answer)) => read(&answer).map_err(|reason| format!("{door}: {reason}")),
            Ok(Err(error)) => Err(format!("{door}: {error}")),
            Err(_) => Err(format!("{door}: no answer in time")),
        };
        match found {
            Ok(Some(leader)) => return Ok(Some(leader)),
            Ok(None) => last = Ok(None),
            Err(_) if last == Ok(None) => {}
            Err(_) => last = found,
        }
    }
    last
}

async fn ask(door: &str, topic: &str) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(door).await?;
    stream.write_all(&request(topic)).await?;
    let length = stream.read_u32().await? as usize;
    if length > LONGEST {
        return Err(std::io::Error::other(format!("an answer of {length} bytes is not Kafka's")));
    }
    let mut answer = vec![0; length];
    stream.read_exact(&mut answer).await?;
    Ok(answer)
}

/// Metadata request of version 1, with its length.
fn request(topic: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend([METADATA, 1].map(i16::to_be_bytes).concat());
    body.extend(0_i32.to_be_bytes());
    text(&mut body, "tenbin-probe");
    body.extend(1_i32.to_be_bytes());
    text(&mut body, topic);
    let mut request = (body.len() as u32).to_be_bytes().to_vec();
    request.extend(body);
    request
}

fn text(body: &mut Vec<u8>, text: &str) {
    body.extend((text.len() as i16).to_be_bytes());
    body.extend(text.as_bytes());
}

/// Leader of partition 0 of the first topic of an answer.
fn read(answer: &[u8]) -> Result<Option<i32>, String> {
    let mut fields = Fields(answer);
    let (error, leader) = fields.topic().ok_or("the answer is not Kafka's")?;
    match (error, leader) {
        // An answer for a topic without a leader has its error code or none.
        (0 | LEADER_NOT_AVAILABLE, leader) => Ok(leader.filter(|node| *node >= 0)),
        (UNKNOWN_TOPIC, _) => Err("the topic does not exist".to_owned()),
        (error, _) => Err(format!("Kafka answers with error {error}")),
    }
}

/// Fields of an answer, in order.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    /// Error of the first topic, and leader of its partition 0.
    fn topic(&mut self) -> Option<(i16, Option<i32>)> {
        // Number of the request, brokers, controller.
        self.i32()?;
        for _ in 0..self.i32()? {
            self.i32()?;
            self.text()?;
            self.i32()?;
            self.text()?;
        }
        self.i32()?;
        self.i32().filter(|topics| *topics >= 1)?;
        let error = self.i16()?;
        self.text()?;
        self.bytes::<1>()?;
        for _ in 0..self.i32()? {
            self.i16()?;
            let (partition, leader) = (self.i32()?, self.i32()?);
            if partition == 0 {
                return Some((error, Some(leader)));
            }
            for _ in 0..2 {
                for _ in 0..self.i32()? {
                    self.i32()?;
                }
            }
        }
        Some((error, None))
    }

    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn i16(&mut self) -> Option<i16> {
        self.bytes().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.bytes().map(i32::from_be_bytes)
    }

    /// Passes over a text, which may be absent.
    fn text(&mut self) -> Option<()> {
        let length = usize::try_from(self.i16()?).unwrap_or(0);
        self.0 = self.0.get(length..)?;
        Some(())
    }
}

const METADATA: i16 = 3;
const UNKNOWN_TOPIC: i16 = 3;
const LEADER_NOT_AVAILABLE: i16 = 5;

/// Longest wait for one broker.
const PATIENCE: Duration = Duration::from_secs(2);

/// Longest answer of a broker that knows some topics and nodes.
const LONGEST: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer with one broker, and a topic with partitions 1 and 0.
    fn answer(error: i16, leader: i32) -> Vec<u8> {
        let mut answer = Vec::new();
        answer.extend([0, 1, 7].map(i32::to_be_bytes).concat());
        text(&mut answer, "broker-1");
        answer.extend(9092_i32.to_be_bytes());
        answer.extend((-1_i16).to_be_bytes());
        answer.extend([7, 1].map(i32::to_be_bytes).concat());
        answer.extend(error.to_be_bytes());
        text(&mut answer, "verify");
        answer.push(0);
        answer.extend(2_i32.to_be_bytes());
        for (partition, leader) in [(1, 9), (0, leader)] {
            answer.extend(0_i16.to_be_bytes());
            answer.extend([partition, leader, 2, 7, 9, 1, 7].map(i32::to_be_bytes).concat());
        }
        answer
    }

    #[test]
    fn leader_is_that_of_partition_0() {
        assert_eq!(read(&answer(0, 7)), Ok(Some(7)));
        assert_eq!(read(&answer(LEADER_NOT_AVAILABLE, -1)), Ok(None));
        assert_eq!(read(&answer(UNKNOWN_TOPIC, 7)), Err("the topic does not exist".to_owned()));
        assert_eq!(read(&answer(29, 7)), Err("Kafka answers with error 29".to_owned()));
    }

    /// A broker that gives `answer` to one question, and its address.
    async fn broker(answer: Vec<u8>) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let length = stream.read_u32().await.unwrap() as usize;
            stream.read_exact(&mut vec![0; length]).await.unwrap();
            stream.write_all(&[&(answer.len() as u32).to_be_bytes()[..], &answer].concat()).await.unwrap();
        });
        address
    }

    #[tokio::test]
    async fn brokers_that_know_no_leader_are_passed_over() {
        let none = || broker(answer(LEADER_NOT_AVAILABLE, -1));
        let unknown = || broker(answer(UNKNOWN_TOPIC, -1));
        let doors = [unknown().await, none().await, broker(answer(0, 7)).await];
        assert_eq!(leader(&doors, "verify").await, Ok(Some(7)));
        assert_eq!(leader(&[none().await, unknown().await], "verify").await, Ok(None));
        let error = leader(&[unknown().await], "verify").await.unwrap_err();
        assert!(error.ends_with(": the topic does not exist"), "{error}");
    }

    #[test]
    fn short_and_random_answers_are_errors() {
        let answer = answer(0, 7);
        // The rest behind the leader is not needed.
        for length in 0..answer.len() - 20 {
            assert!(read(&answer[..length]).is_err(), "{length} bytes");
        }
        for byte in 0..=u8::MAX {
            let _ = read(&[byte; 100]);
        }
    }
}
