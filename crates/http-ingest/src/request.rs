//! Heads of requests: method, topic, parameters and Content-Type.

use bytes::Bytes;
use hyper::header::HeaderName;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Version, header};
use tenbin_client::{MessageProperties, OutgoingMessage, QoS, Text, TopicName};

use crate::answer::Refusal;

/// Path below which topics are.
const TOPICS: &str = "/topics/";

/// A legal request.
#[derive(Debug)]
pub(crate) enum Asked {
    Publish(Publish),
    /// Read the retained message.
    Read(TopicName),
}

/// A message whose payload is still to be received.
#[derive(Debug)]
pub(crate) struct Publish {
    pub(crate) topic: TopicName,
    qos: QoS,
    retain: bool,
    expiry: Option<u32>,
    content_type: Option<Text>,
}

impl Asked {
    /// Reads the head of a request.
    pub(crate) fn read(head: &Parts) -> Result<Self, Refusal> {
        let path = head.uri.path();
        if path == "/topics" {
            return Err(Refusal::bad_request("no topic in the path, as in /topics/plant/1"));
        }
        let Some(topic) = path.strip_prefix(TOPICS) else {
            return Err(Refusal::new(
                StatusCode::NOT_FOUND,
                format!("no such path: {path:?}; topics are at {TOPICS}…"),
            ));
        };
        if ![Method::GET, Method::HEAD, Method::POST].contains(&head.method) {
            let text = format!("method {} is not GET, HEAD or POST", head.method);
            return Err(Refusal::new(StatusCode::METHOD_NOT_ALLOWED, text));
        }
        // Else any page that a user of this machine opens could publish to a listener on a loopback address.
        if let Some(origin) = head.headers.get(header::ORIGIN) {
            return Err(Refusal::new(StatusCode::FORBIDDEN, format!("a web page of origin {origin:?} may not ask")));
        }
        check_host(head)?;
        let topic = topic_in(topic)?;
        let parameters = head.uri.query().unwrap_or_default().split('&').filter(|parameter| !parameter.is_empty());
        if head.method == Method::POST {
            check_body(&head.headers)?;
            let mut publish = Publish::new(topic, content_type(&head.headers)?);
            publish.read_parameters(parameters)?;
            return Ok(Self::Publish(publish));
        }
        if topic.as_bytes().starts_with(b"$share/") {
            return Err(Refusal::bad_request("a shared subscription has no retained message: \"$share/…\""));
        }
        match { parameters }.next() {
            Some(parameter) => Err(Refusal::bad_request(format!("{} takes no parameter: {parameter:?}", head.method))),
            None => Ok(Self::Read(topic)),
        }
    }
}

impl Publish {
    fn new(topic: TopicName, content_type: Option<Text>) -> Self {
        // By its acknowledgement, which QoS 0 has not, the status tells the broker's decision.
        Self { topic, qos: QoS::AtLeastOnce, retain: false, expiry: None, content_type }
    }

    fn read_parameters<'a>(&mut self, parameters: impl Iterator<Item = &'a str>) -> Result<(), Refusal> {
        let mut seen = Vec::new();
        for parameter in parameters {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let wrong = |legal: &str| Refusal::bad_request(format!("parameter {name} is {value:?}: {legal}"));
            if seen.contains(&name) {
                return Err(Refusal::bad_request(format!("parameter {name} is there twice")));
            }
            seen.push(name);
            match name {
                "qos" => {
                    let qos = value.parse().ok().and_then(QoS::from_bits);
                    self.qos = qos.ok_or_else(|| wrong("legal are 0, 1 and 2"))?;
                }
                "retain" => self.retain = value.parse().map_err(|_| wrong("legal are true and false"))?,
                "expiry" => {
                    let seconds = value.parse().ok().filter(|&seconds| seconds > 0);
                    self.expiry = Some(seconds.ok_or_else(|| wrong("legal are 1 to 4294967295 seconds"))?);
                }
                _ => {
                    let text = format!("unknown parameter {name:?}: legal are qos, retain and expiry");
                    return Err(Refusal::bad_request(text));
                }
            }
        }
        Ok(())
    }

    /// The message with its payload.
    pub(crate) fn message(self, payload: Bytes) -> Result<OutgoingMessage, Refusal> {
        let Self { topic, qos, retain, expiry, content_type } = self;
        let is_text = content_type.as_ref().is_some_and(|content_type| declares_utf8(content_type.as_str()));
        if is_text && let Err(error) = std::str::from_utf8(&payload) {
            let declared = content_type.as_ref().map_or("", Text::as_str);
            let text = format!("the body is not UTF-8, as Content-Type {declared:?} declares: {error}");
            return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
        }
        let mut message = OutgoingMessage::new(topic, payload).at(qos);
        message.retain = retain;
        if content_type.is_some() || expiry.is_some() {
            message.properties = Some(Box::new(MessageProperties {
                payload_format_indicator: is_text.then_some(true),
                message_expiry_interval: expiry,
                content_type,
                ..MessageProperties::default()
            }));
        }
        Ok(message)
    }
}

/// The topic in the rest of a path, with its percent-encoding removed.
fn topic_in(rest: &str) -> Result<TopicName, Refusal> {
    let mut bytes = Vec::with_capacity(rest.len());
    let mut left = rest.as_bytes();
    while let Some((&byte, behind)) = left.split_first() {
        left = behind;
        bytes.push(if byte == b'%' {
            let digit = |at: usize| behind.get(at).and_then(|&digit| char::from(digit).to_digit(16));
            let Some((high, low)) = digit(0).zip(digit(1)) else {
                let text = format!("topic {rest:?}: % without two hexadecimal digits; % itself is %25");
                return Err(Refusal::bad_request(text));
            };
            left = &behind[2..];
            (high * 16 + low) as u8
        } else {
            byte
        });
    }
    let illegal = |error: &dyn std::fmt::Display| Refusal::bad_request(format!("topic {rest:?}: {error}"));
    let text = Text::new(bytes.into()).map_err(|error| illegal(&error))?;
    TopicName::new(text).map_err(|error| illegal(&error))
}

/// Refuses a request of HTTP/1.1 that does not name its host once (RFC 9112, 3.2).
fn check_host(head: &Parts) -> Result<(), Refusal> {
    let hosts = head.headers.get_all(header::HOST).iter().count();
    if hosts > 1 || (hosts == 0 && head.version == Version::HTTP_11) {
        return Err(Refusal::bad_request(format!("the request has {hosts} fields Host instead of one")));
    }
    Ok(())
}

/// Refuses fields by which the body is something else than the payload.
fn check_body(headers: &HeaderMap) -> Result<(), Refusal> {
    let other = |name: &HeaderName, plain: &str| {
        let values = headers.get_all(name).iter().flat_map(|value| value.as_bytes().split(|&byte| byte == b','));
        let mut values = values.map(|value| String::from_utf8_lossy(value.trim_ascii()).into_owned());
        values.find(|value| !value.is_empty() && !value.eq_ignore_ascii_case(plain))
    };
    let refuse = |status, name: HeaderName, value: String, legal: &str| {
        Err(Refusal::new(status, format!("{name} {value:?} is not supported: {legal}")))
    };
    if let Some(value) = other(&header::CONTENT_ENCODING, "identity") {
        let legal = "the body becomes the payload as it is, so send it without encoding";
        return refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE, header::CONTENT_ENCODING, value, legal);
    }
    if let Some(value) = other(&header::TRANSFER_ENCODING, "chunked") {
        return refuse(StatusCode::NOT_IMPLEMENTED, header::TRANSFER_ENCODING, value, "legal is chunked");
    }
    if let Some(value) = other(&header::EXPECT, "100-continue") {
        return refuse(StatusCode::EXPECTATION_FAILED, header::EXPECT, value, "legal is 100-continue");
    }
    if headers.contains_key(header::CONTENT_RANGE) {
        return Err(Refusal::bad_request("Content-Range: a part of a message cannot be published"));
    }
    if headers.get_all(header::CONTENT_TYPE).iter().count() > 1 {
        return Err(Refusal::bad_request("Content-Type is there twice"));
    }
    Ok(())
}

fn content_type(headers: &HeaderMap) -> Result<Option<Text>, Refusal> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
    let text = Text::new(Bytes::copy_from_slice(value.as_bytes()));
    text.map(Some).map_err(|error| {
        let text = format!("Content-Type {value:?}: {error}");
        Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text)
    })
}

/// Whether such content is UTF-8: JSON always is (RFC 8259).
fn declares_utf8(content_type: &str) -> bool {
    let mut parts = content_type.split(';').map(|part| part.trim().to_ascii_lowercase());
    let media_type = parts.next().unwrap_or_default();
    media_type == "application/json"
        || media_type.ends_with("+json")
        || parts.any(|part| matches!(&*part, "charset=utf-8" | "charset=\"utf-8\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, uri: &str) -> Result<Asked, String> {
        read_with(method, uri, &[("host", "a")])
    }

    fn read_with(method: &str, uri: &str, fields: &[(&str, &str)]) -> Result<Asked, String> {
        let request = hyper::Request::builder().method(method).uri(uri);
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        Asked::read(&request.body(()).unwrap().into_parts().0).map_err(|refusal| format!("{refusal:?}"))
    }

    #[test]
    fn fields_that_change_the_body_are_refused() {
        let status = |fields: &[(&str, &str)]| {
            let refused = read_with("POST", "/topics/a", &[&[("host", "a")], fields].concat());
            refused.err().map(|error| error.split("status: ").nth(1).unwrap()[..3].parse::<u16>().unwrap())
        };
        for (field, value, expected) in [
            ("content-encoding", "gzip", Some(415)),
            ("content-encoding", "identity, br", Some(415)),
            ("content-encoding", "Identity", None),
            ("transfer-encoding", "gzip, chunked", Some(501)),
            ("transfer-encoding", "Chunked", None),
            ("expect", "200-ok", Some(417)),
            ("expect", "100-continue", None),
            ("content-range", "bytes 0-1/9", Some(400)),
        ] {
            assert_eq!(status(&[(field, value)]), expected, "{field}: {value}");
        }
        assert_eq!(status(&[("content-type", "a/b"), ("content-type", "c/d")]), Some(400));
    }

    #[test]
    fn host_is_named_once() {
        for hosts in [&[][..], &[("host", "a"), ("host", "b")]] {
            let error = read_with("GET", "/topics/a", hosts).unwrap_err();
            assert!(error.contains("400") && error.contains("Host"), "{error}");
        }
    }

    fn publish(uri: &str) -> Publish {
        match read("POST", uri) {
            Ok(Asked::Publish(publish)) => publish,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn topics_are_percent_decoded() {
        for (path, topic) in [
            ("plant/1/temp", "plant/1/temp"),
            ("/a", "/a"),
            ("a//", "a//"),
            ("a%2Fb%20c", "a/b c"),
            ("%E2%82%AC", "€"),
            ("%24SYS/x", "$SYS/x"),
            ("$SYS/x", "$SYS/x"),
            ("100%25", "100%"),
        ] {
            assert_eq!(publish(&format!("/topics/{path}")).topic.text().as_str(), topic);
        }
    }

    #[test]
    fn illegal_topics_are_named() {
        for (path, word) in [
            ("", "empty topic"),
            ("a/+", "wildcard"),
            ("a/%23", "wildcard"),
            ("a%00", "topic"),
            ("a%FF", "topic"),
            ("a%2", "hexadecimal"),
            ("a%zz", "%zz"),
            ("%", "hexadecimal"),
            ("%+1", "hexadecimal"),
        ] {
            let error = read("POST", &format!("/topics/{path}")).unwrap_err();
            assert!(error.contains("400") && error.contains(word), "{path}: {error}");
        }
    }

    #[test]
    fn parameters_are_read() {
        let Publish { qos, retain, expiry, .. } = publish("/topics/a?qos=2&retain=true&expiry=60");
        assert_eq!((qos, retain, expiry), (QoS::ExactlyOnce, true, Some(60)));
        let Publish { qos, retain, expiry, .. } = publish("/topics/a?&");
        assert_eq!((qos, retain, expiry), (QoS::AtLeastOnce, false, None));
    }

    #[test]
    fn illegal_requests_are_named() {
        for (method, uri, word) in [
            ("POST", "/topics/a?qos=3", "parameter qos is"),
            ("POST", "/topics/a?qos=", "parameter qos is"),
            ("POST", "/topics/a?qos=1&qos=1", "qos is there twice"),
            ("POST", "/topics/a?retain=1", "parameter retain is"),
            ("POST", "/topics/a?expiry=0", "parameter expiry is"),
            ("POST", "/topics/a?expiry=4294967296", "parameter expiry is"),
            ("POST", "/topics/a?expire=1", "unknown parameter"),
            ("POST", "/topics", "no topic"),
            ("GET", "/topics/a?qos=1", "takes no parameter"),
            ("GET", "/topics/$share/g/a", "shared subscription"),
            ("POST", "/topic/a", "404"),
            ("DELETE", "/topics/a", "405"),
        ] {
            let error = read(method, uri).unwrap_err();
            assert!(error.contains(word), "{method} {uri}: {error}");
        }
    }

    #[test]
    fn declared_text_has_to_be_utf_8() {
        for (content_type, is_text) in [
            ("application/json", true),
            ("application/senml+json", true),
            ("Text/Plain; Charset=UTF-8", true),
            ("text/plain; charset=\"utf-8\"", true),
            ("text/plain", false),
            ("text/plain; charset=latin1", false),
            ("application/octet-stream", false),
        ] {
            let text = Text::try_from(content_type).unwrap();
            let publish = |payload: &'static [u8]| {
                let topic = TopicName::try_from("a").unwrap();
                Publish::new(topic, Some(text.clone())).message(Bytes::from_static(payload))
            };
            let properties = publish(b"21.5").unwrap().properties.unwrap();
            assert_eq!(properties.payload_format_indicator, is_text.then_some(true), "{content_type}");
            assert_eq!(properties.content_type, Some(text.clone()));
            assert_eq!(publish(b"\xFF").is_err(), is_text, "{content_type}");
        }
    }
}
