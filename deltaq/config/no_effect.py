"""Settings without effect: accepted and checked, so that one configuration works for Kafka and for
deltaq.
"""

from __future__ import annotations

from deltaq.config.declare import (
    DAY_MS,
    INT32_MAX,
    boolean,
    callback,
    choice,
    integer,
    string,
    strings,
    without_effect,
)
from deltaq.config.setting import Setting

NO_EFFECT: tuple[Setting, ...] = (
    *without_effect(
        "deltaq connects to a store, not to brokers: see the settings `store.*`.",
        integer("socket.timeout.ms", "both", 60_000, 10, 300_000),
        integer("socket.blocking.max.ms", "both", 1_000, 1, 60_000),
        integer("socket.send.buffer.bytes", "both", 0, 0, 100_000_000),
        integer("socket.receive.buffer.bytes", "both", 0, 0, 100_000_000),
        boolean("socket.keepalive.enable", "both", False),
        boolean("socket.nagle.disable", "both", True),
        integer("socket.max.fails", "both", 1, 0, 1_000_000),
        integer("socket.connection.setup.timeout.ms", "both", 30_000, 1_000, INT32_MAX),
        integer("broker.address.ttl", "both", 1_000, 0, DAY_MS),
        choice("broker.address.family", "both", "any", ("any", "v4", "v6")),
        string("broker.version.fallback", "both", "0.10.0"),
        integer("connections.max.idle.ms", "both", 0, 0, INT32_MAX),
        boolean("enable.sparse.connections", "both", True),
        integer("reconnect.backoff.ms", "both", 100, 0, 3_600_000),
        integer("reconnect.backoff.max.ms", "both", 10_000, 0, 3_600_000),
        integer("reconnect.backoff.jitter.ms", "both", 0, 0, 3_600_000),
        boolean("api.version.request", "both", True),
        integer("api.version.request.timeout.ms", "both", 10_000, 1, 300_000),
        integer("api.version.fallback.ms", "both", 0, 0, 604_800_000),
        choice(
            "client.dns.lookup",
            "both",
            "use_all_dns_ips",
            ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only"),
        ),
        *strings("both", "client.rack client.software.name client.software.version"),
        boolean("enable.metrics.push", "both", True),
        integer("receive.message.max.bytes", "both", 100_000_000, 1_000, INT32_MAX),
        integer("request.timeout.ms", "producer", 30_000, 1, 900_000),
        callback("throttle_cb", "both"),
        # TLS
        choice(
            "security.protocol",
            "both",
            "plaintext",
            ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"),
        ),
        *strings(
            "both",
            "ssl.cipher.suites ssl.curves.list ssl.sigalgs.list ssl.key.location ssl.key.password "
            "ssl.key.pem ssl.certificate.location ssl.certificate.pem ssl.ca.location ssl.ca.pem "
            "ssl.crl.location ssl.keystore.location ssl.keystore.password ssl.providers "
            "ssl.engine.location https.ca.location https.ca.pem",
        ),
        string("ssl.ca.certificate.stores", "both", "Root"),
        string("ssl.engine.id", "both", "dynamic"),
        boolean("enable.ssl.certificate.verification", "both", True),
        choice("ssl.endpoint.identification.algorithm", "both", "https", ("none", "https")),
        # SASL
        string("sasl.mechanisms", "both", "GSSAPI", "sasl.mechanism"),
        string("sasl.kerberos.service.name", "both", "kafka"),
        string("sasl.kerberos.principal", "both", "kafkaclient"),
        integer("sasl.kerberos.min.time.before.relogin", "both", 60_000, 0, DAY_MS),
        boolean("enable.sasl.oauthbearer.unsecure.jwt", "both", False),
        choice("sasl.oauthbearer.method", "both", "default", ("default", "oidc")),
        string(
            "sasl.oauthbearer.client.id",
            "both",
            None,
            "sasl.oauthbearer.client.credentials.client.id",
        ),
        string(
            "sasl.oauthbearer.client.secret",
            "both",
            None,
            "sasl.oauthbearer.client.credentials.client.secret",
        ),
        string("sasl.oauthbearer.sub.claim.name", "both", "sub"),
        choice(
            "sasl.oauthbearer.grant.type",
            "both",
            "client_credentials",
            ("client_credentials", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ),
        choice("sasl.oauthbearer.assertion.algorithm", "both", "RS256", ("RS256", "ES256")),
        *strings(
            "both",
            "sasl.username sasl.password sasl.kerberos.kinit.cmd sasl.kerberos.keytab "
            "sasl.oauthbearer.config sasl.oauthbearer.scope sasl.oauthbearer.extensions "
            "sasl.oauthbearer.token.endpoint.url sasl.oauthbearer.assertion.private.key.file "
            "sasl.oauthbearer.assertion.private.key.passphrase "
            "sasl.oauthbearer.assertion.private.key.pem sasl.oauthbearer.assertion.file "
            "sasl.oauthbearer.assertion.jwt.template.file sasl.oauthbearer.assertion.claim.aud "
            "sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.sub",
        ),
        integer("sasl.oauthbearer.assertion.claim.exp.seconds", "both", 300, 1, INT32_MAX),
        integer("sasl.oauthbearer.assertion.claim.nbf.seconds", "both", 60, 0, INT32_MAX),
        boolean("sasl.oauthbearer.assertion.claim.jti.include", "both", False),
        choice(
            "sasl.oauthbearer.metadata.authentication.type",
            "both",
            "none",
            ("none", "azure_imds", "aws_iam"),
        ),
        callback("oauth_cb", "both"),
    ),
    *without_effect(
        "There is no broker metadata to refresh: see `topic.metadata.refresh.interval.ms`.",
        choice("metadata.recovery.strategy", "both", "rebootstrap", ("none", "rebootstrap")),
        integer("metadata.recovery.rebootstrap.trigger.ms", "both", 300_000, 0, INT32_MAX),
        integer("metadata.request.timeout.ms", "both", 60_000, 10, 900_000),
        integer("metadata.max.age.ms", "both", 900_000, 1, DAY_MS),
        integer("topic.metadata.refresh.fast.interval.ms", "both", 100, 1, 60_000),
        integer("topic.metadata.refresh.fast.cnt", "both", 10, 0, 1_000),
        boolean("topic.metadata.refresh.sparse", "both", True),
        integer("topic.metadata.propagation.max.ms", "both", 30_000, 0, 3_600_000),
        string("topic.blacklist", "both"),
    ),
    *without_effect(
        "Use Python's logging: all loggers are below `deltaq`.",
        string("debug", "both"),
        integer("log_level", "both", 6, 0, 7),
        boolean("log.queue", "both", False),
        boolean("log.thread.name", "both", True),
        boolean("log.connection.close", "both", True),
    ),
    *without_effect(
        "Specific to the implementation of librdkafka.",
        *strings("both", "builtin.features plugin.library.paths"),
        integer("enabled_events", "both", 0, 0, INT32_MAX),
        boolean("enable.random.seed", "both", True),
        integer("internal.termination.signal", "both", 0, 0, 128),
        integer("message.copy.max.bytes", "both", 65_535, 0, 1_000_000_000),
        integer("test.mock.num.brokers", "both", 0, 0, 10_000),
        integer("test.mock.broker.rtt", "both", 0, 0, 3_600_000),
        boolean("produce.offset.report", "producer", False),
        integer("consume.callback.max.messages", "consumer", 0, 0, 1_000_000),
    ),
    *without_effect(
        "deltaq retries until `message.timeout.ms`, with its own back-off.",
        integer("retries", "producer", INT32_MAX, 0, INT32_MAX, "message.send.max.retries"),
        integer("retry.backoff.ms", "both", 100, 1, 300_000),
        integer("retry.backoff.max.ms", "both", 1_000, 1, 300_000),
        integer(
            "max.in.flight.requests.per.connection",
            "both",
            1_000_000,
            1,
            1_000_000,
            "max.in.flight",
        ),
        integer("queue.buffering.backpressure.threshold", "producer", 1, 1, 1_000_000),
    ),
    *without_effect(
        "Messages keep the order of `produce()`; a failed message does not reorder the others. As "
        "with Kafka, a gapless guarantee requires `enable.idempotence`, and that requires `fifo`.",
        choice("queuing.strategy", "producer", "fifo", ("fifo", "lifo")),
        boolean("enable.gapless.guarantee", "producer", False),
    ),
    *without_effect(
        "`fetch.max.bytes` and `queued.max.messages.kbytes` control fetching.",
        integer("fetch.min.bytes", "consumer", 1, 0, INT32_MAX),
        integer("queued.min.messages", "consumer", 100_000, 1, 10_000_000),
        integer(
            "fetch.message.max.bytes",
            "consumer",
            1_048_576,
            1,
            1_000_000_000,
            "max.partition.fetch.bytes",
        ),
        integer("fetch.queue.backoff.ms", "consumer", 1_000, 0, 300_000),
        integer("fetch.error.backoff.ms", "consumer", 500, 0, 300_000),
    ),
    *without_effect(
        "deltaq has one group protocol, without a coordinator.",
        choice("group.protocol", "consumer", "classic", ("classic", "consumer")),
        string("group.protocol.type", "consumer", "consumer"),
        string("group.remote.assignor", "consumer"),
        integer("coordinator.query.interval.ms", "consumer", 600_000, 1, 3_600_000),
    ),
    *without_effect(
        "Offsets are always committed to the group's log.",
        choice("offset.store.method", "consumer", "broker", ("none", "file", "broker")),
        string("offset.store.path", "consumer", "."),
        integer("offset.store.sync.interval.ms", "consumer", -1, -1, DAY_MS),
    ),
)
