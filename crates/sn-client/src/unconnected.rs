use std::io;

use tenbin_sn::Datagrams;
use tenbin_sn_codec::v1_2::{Message, Publish, Topic as TopicField};

use crate::link::{Link, resolve};
use crate::message::check_payload;
use crate::{ClientErrorKind, Failure, Topic};

/// Publishes a message at QoS −1: one datagram to a gateway ("host:port"), without a connection and without an answer.
///
/// The topic is predefined or short. The message is lost unless the gateway accepts QoS −1.
///
/// # Errors
/// Topic or payload are illegal, or the gateway's name has no address.
pub async fn publish_unconnected(
    gateway: &str,
    topic: &Topic,
    retain: bool,
    payload: &[u8],
) -> Result<(), ClientErrorKind> {
    topic.check_name().and_then(|()| check_payload(payload)).map_err(ClientErrorKind::Invalid)?;
    let topic = match topic {
        Topic::Predefined(id) => TopicField::Predefined(*id),
        Topic::Short(name) => TopicField::Short(*name),
        Topic::Name(name) => {
            let fault = format!("topic name {name:?}: QoS -1 needs a predefined id or a name of two bytes");
            return Err(ClientErrorKind::Invalid(fault));
        }
    };
    let mut datagrams = Datagrams::default();
    datagrams.push(&Message::Publish(Publish {
        dup: false,
        qos: None,
        retain,
        topic,
        message_id: None,
        data: payload,
    }));
    send(gateway, &mut datagrams)
        .await
        .map_err(|error| ClientErrorKind::NoGateway(vec![Failure { gateway: gateway.into(), reason: error.into() }]))
}

async fn send(gateway: &str, datagrams: &mut Datagrams) -> io::Result<()> {
    Link::open(resolve(gateway).await?[0]).await?.send(datagrams).await
}
