//! Statements of the standard at the byte level, by its sections. A test's name contains the statements that it covers;
//! `../requirements.toml` also lists the statements that other tests cover.

mod byte_client;
mod s1_5_data;
mod s2_control_packets;
mod s3_01_connect;
mod s3_02_connack;
mod s3_03_publish;
mod s3_04_acknowledgements;
mod s3_08_subscribe;
mod s3_14_disconnect;
mod s4_01_state;
mod s4_03_qos;
mod s4_07_topics;
mod s4_08_shared;
mod v3_1_1;
