"""Which topics have directories at a broker."""


def topic_directories(broker):
    return {path.name for path in broker.data_dir.glob("topics/*") if not path.name.endswith(".deleted")}
