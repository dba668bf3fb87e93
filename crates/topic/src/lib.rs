//! MQTT topic names, topic filters and the subscription index.
