package org.apache.kafka.common.test;

import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;

import kafka.raft.KafkaRaftManager;
import kafka.server.BrokerServer;
import kafka.server.ControllerServer;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.apache.kafka.common.test.junit.ExternalCluster;
import org.apache.kafka.controller.Controller;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.opentest4j.TestAbortedException;

/**
 * Replaces Kafka's class of the same name, because it comes first on the class path: the harness on which the integration
 * tests of Streams and Connect run. Its brokers are those of an {@link ExternalCluster}.
 */
public class KafkaClusterTestKit implements AutoCloseable {
    /** Listeners are the harness's own; a test that lays them out itself needs Kafka's. */
    private static final Set<String> LISTENERS = Set.of("listeners", "advertised.listeners", "listener.security.protocol.map");

    private final TestKitNodes nodes;
    private final ExternalCluster cluster;
    private final MockFaultHandler fatal = new MockFaultHandler("fatalFaultHandler");
    private final MockFaultHandler nonFatal = new MockFaultHandler("nonFatalFaultHandler");

    private KafkaClusterTestKit(TestKitNodes nodes, ExternalCluster cluster) {
        this.nodes = nodes;
        this.cluster = cluster;
    }

    /** Collects what a test asks for. */
    public static class Builder {
        private final TestKitNodes nodes;
        private final Map<String, String> properties = new HashMap<>();

        public Builder(TestKitNodes nodes) {
            this.nodes = nodes;
        }

        public Builder setConfigProp(String key, Object value) {
            properties.put(key, String.valueOf(value));
            return this;
        }

        public Builder setStandalone(boolean standalone) {
            return this;
        }

        public Builder setInitialVoterSet(Map<Integer, Uuid> voters) {
            throw ExternalCluster.inside("voters");
        }

        public Builder setDeleteOnClose(boolean delete) {
            return this;
        }

        public KafkaClusterTestKit build() {
            properties.keySet().stream().filter(LISTENERS::contains).findFirst().ifPresent(key -> {
                throw new TestAbortedException("setting: " + key + "=" + properties.get(key));
            });
            ClusterConfig config = ClusterConfig.defaultBuilder().setTypes(Set.of(Type.KRAFT)).setBrokers(nodes.brokerNodes().size())
                .setBrokerSecurityProtocol(nodes.brokerListenerProtocol()).setBrokerListenerName(nodes.brokerListenerName())
                .setServerProperties(properties).setPerServerProperties(nodes.brokerNodes().entrySet().stream()
                    .collect(Collectors.toMap(Map.Entry::getKey, e -> e.getValue().propertyOverrides()))).build();
            ExternalCluster cluster = new ExternalCluster(config, Type.KRAFT);
            cluster.named(StackWalker.getInstance().walk(frames -> frames.map(StackWalker.StackFrame::getClassName)
                .filter(name -> name.endsWith("Test")).findFirst().orElse("?")));
            cluster.refuseWhatCannotBe();
            return new KafkaClusterTestKit(nodes, cluster);
        }
    }

    public void format() {
    }

    public void startup() {
        cluster.start();
    }

    @Override
    public void close() {
        cluster.stop();
    }

    public void waitForReadyBrokers() throws InterruptedException {
        cluster.waitForReadyBrokers();
    }

    public void restartBrokersWithSwappedClientListenerPorts(int one, int other) {
        throw ExternalCluster.inside("restartBrokersWithSwappedClientListenerPorts");
    }

    public Admin admin() {
        return cluster.admin();
    }

    public Admin admin(Map<String, Object> configs) {
        return cluster.admin(configs);
    }

    public Admin admin(Map<String, Object> configs, boolean controllers) {
        return cluster.admin(configs, controllers);
    }

    public String bootstrapServers() {
        return cluster.bootstrapServers();
    }

    public String bootstrapControllers() {
        return cluster.bootstrapControllers();
    }

    public Map<Integer, BrokerServer> brokers() {
        return cluster.brokerServers();
    }

    public Map<Integer, ControllerServer> controllers() {
        return cluster.controllers();
    }

    public Controller waitForActiveController() {
        throw ExternalCluster.inside("waitForActiveController");
    }

    public Map<Integer, KafkaRaftManager<ApiMessageAndVersion>> raftManagers() {
        throw ExternalCluster.inside("raftManagers");
    }

    public TestKitNodes nodes() {
        return nodes;
    }

    public MockFaultHandler fatalFaultHandler() {
        return fatal;
    }

    public MockFaultHandler nonFatalFaultHandler() {
        return nonFatal;
    }
}
