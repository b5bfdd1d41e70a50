package nexmark;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.Map;
import org.apache.flink.table.functions.FunctionContext;
import org.apache.flink.table.functions.TableFunction;

/** Looks a key up in a CSV file, which each subtask reads into memory when it starts. */
public class SideInput extends TableFunction<String> {
    private transient Map<Integer, String> values;

    @Override
    public void open(FunctionContext context) throws Exception {
        values = new HashMap<>();
        for (String line : Files.readAllLines(Path.of(context.getJobParameter("nexmark.side-input", "")))) {
            String[] fields = line.split(",", 2);
            values.put(Integer.valueOf(fields[0]), fields[1]);
        }
    }

    public void eval(Integer key) {
        String value = values.get(key);
        if (value != null) {
            collect(value);
        }
    }
}
