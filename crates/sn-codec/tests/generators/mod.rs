//! Any legal message.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tenbin_sn_codec::v1_2::{
    Advertise, Auth, Connect, Disconnect, GwInfo, Message, MessageId, PingReq, PubAck, Publish, QoS, RegAck, Register,
    ReturnCode, SearchGw, ShortName, SubAck, Subscribe, Subscribed, Topic, Unsubscribe, WillTopic,
};

/// Content of a message: its parts that borrow.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    pub(crate) text: String,
    pub(crate) short: ShortName,
    pub(crate) bytes: Vec<u8>,
    pub(crate) numbers: [u16; 3],
    pub(crate) bits: [bool; 4],
    pub(crate) qos: QoS,
    pub(crate) code: ReturnCode,
    pub(crate) id: Option<u16>,
    pub(crate) kind: usize,
}

/// Number of forms that [`Content::message`] knows.
pub(crate) const FORMS: usize = 37;

pub(crate) fn content() -> impl Strategy<Value = Content> {
    let text = prop_oneof![8 => "[^\0]{1,40}", 1 => "[a-z/+#]{240,300}"];
    let bytes = prop_oneof![8 => vec(any::<u8>(), 0..40), 1 => vec(any::<u8>(), 240..300)];
    let qos = prop_oneof![Just(QoS::AtMostOnce), Just(QoS::AtLeastOnce), Just(QoS::ExactlyOnce)];
    let code = prop_oneof![
        Just(ReturnCode::Accepted),
        Just(ReturnCode::Congestion),
        Just(ReturnCode::InvalidTopicId),
        Just(ReturnCode::NotSupported)
    ];
    let short = "[a-z0-9/]{2}".prop_map(|name| ShortName::new(&name).expect("two bytes"));
    (text, short, bytes, any::<[u16; 3]>(), any::<[bool; 4]>(), qos, code, option::of(1_u16..), 0..FORMS).prop_map(
        |(text, short, bytes, numbers, bits, qos, code, id, kind)| Content {
            text,
            short,
            bytes,
            numbers,
            bits,
            qos,
            code,
            id,
            kind,
        },
    )
}

impl Content {
    pub(crate) fn message(&self) -> Message<'_> {
        let [a, b, _] = self.numbers;
        let [dup, retain, will, clean_session] = self.bits;
        let (text, code, qos, data) = (&self.text[..], self.code, self.qos, &self.bytes[..]);
        let message_id = self.id.and_then(MessageId::new);
        let id = MessageId::new(self.id.unwrap_or(1)).expect("not 0");
        let will_topic = WillTopic { qos, retain, topic: text };
        let publish = |topic| {
            let message_id = if qos.is_acknowledged() { Some(id) } else { message_id };
            Message::Publish(Publish { dup, qos: Some(qos), retain, topic, message_id, data })
        };
        let subscribe = |topic| Message::Subscribe(Subscribe { dup, qos, message_id: id, topic });
        let unsubscribe = |topic| Message::Unsubscribe(Unsubscribe { message_id: id, topic });
        match self.kind {
            0 => Message::Advertise(Advertise { gateway_id: b as u8, duration: a }),
            1 => Message::SearchGw(SearchGw { radius: a as u8 }),
            2 => Message::GwInfo(GwInfo { gateway_id: a as u8, address: data }),
            3 => Message::Connect(Connect { will, clean_session, duration: a, client_id: text }),
            4 => Message::ConnAck(code),
            5 => Message::WillTopicReq,
            6 => Message::WillTopic(Some(will_topic)),
            7 => Message::WillTopic(None),
            8 => Message::WillMsgReq,
            9 => Message::WillMsg(data),
            10 => Message::Register(Register { topic_id: a, message_id, topic: text }),
            11 => Message::RegAck(RegAck { topic_id: a, message_id, code }),
            12 => publish(Topic::Normal(a)),
            13 => publish(Topic::Predefined(a)),
            14 => publish(Topic::Short(self.short)),
            15 => publish(Topic::Reserved(a)),
            16 => {
                let topic = Topic::Predefined(a);
                Message::Publish(Publish { dup, qos: None, retain, topic, message_id, data })
            }
            17 => Message::PubAck(PubAck { topic_id: a, message_id, code }),
            18 => Message::PubRec(id),
            19 => Message::PubRel(id),
            20 => Message::PubComp(id),
            21 => subscribe(Subscribed::Name(text)),
            22 => subscribe(Subscribed::Predefined(a)),
            23 => subscribe(Subscribed::Short(self.short)),
            24 => Message::SubAck(SubAck { qos, topic_id: a, message_id: id, code }),
            25 => unsubscribe(Subscribed::Name(text)),
            26 => unsubscribe(Subscribed::Predefined(a)),
            27 => unsubscribe(Subscribed::Short(self.short)),
            28 => Message::UnsubAck(id),
            29 => Message::PingReq(PingReq { client_id: will.then_some(text) }),
            30 => Message::PingResp,
            31 => Message::Disconnect(Disconnect { duration: will.then_some(a) }),
            32 => Message::WillTopicUpd(will.then_some(will_topic)),
            33 => Message::WillTopicResp(code),
            34 => Message::WillMsgUpd(data),
            35 => Message::Auth(Auth { reason: a as u8, method: Auth::PLAIN, data }),
            _ => Message::WillMsgResp(code),
        }
    }
}
