package org.apache.kafka.common.test.junit;

import java.util.List;

import org.apache.kafka.common.test.api.ClusterConfig;
import org.apache.kafka.common.test.api.Type;
import org.junit.jupiter.api.extension.AfterTestExecutionCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.Extension;
import org.junit.jupiter.api.extension.TestTemplateInvocationContext;
import org.opentest4j.TestAbortedException;

/**
 * Replaces Kafka's class of the same name, because it comes first on the class path. Each test gets an {@link ExternalCluster}.
 */
public class RaftClusterInvocationContext implements TestTemplateInvocationContext {
    private final String name;
    private final ClusterConfig config;
    private final boolean combined;

    public RaftClusterInvocationContext(String name, ClusterConfig config, boolean combined) {
        this.name = name;
        this.config = config;
        this.combined = combined;
    }

    @Override
    public String getDisplayName(int index) {
        return name + " [" + index + "] " + (combined ? "combined" : "isolated") + " " + String.join(",", config.tags());
    }

    @Override
    public List<Extension> getAdditionalExtensions() {
        ExternalCluster cluster = new ExternalCluster(config, combined ? Type.CO_KRAFT : Type.KRAFT);
        return List.of(
            (BeforeEachCallback) context -> {
                if (combined && config.clusterTypes().contains(Type.KRAFT)) {
                    throw new TestAbortedException("twin: runs as isolated already");
                }
                cluster.named(context.getRequiredTestClass().getSimpleName() + "." + context.getDisplayName());
                cluster.refuseWhatCannotBe();
                if (config.isAutoStart()) {
                    cluster.start();
                }
            },
            (AfterTestExecutionCallback) context -> cluster.stop(),
            new ClusterInstanceParameterResolver(cluster));
    }
}
