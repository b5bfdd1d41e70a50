// The pages in Airflow. Airflow imports this file once, and takes the component of each `react_apps` entry from the
// global with the entry's name.
import { useLocation } from "react-router-dom";
import { App } from "../App";
import { JobOfDag } from "../pages/JobOfDag";
import { JobsCard } from "../pages/Jobs";
import { pluginBase } from "../parts/links";

/** The path at which Airflow shows the app. */
function useBase(): string {
  return pluginBase(useLocation().pathname);
}

function Navigation() {
  return <App base={useBase()} />;
}

function DagTab({ dagId }: { dagId?: string }) {
  return <JobOfDag dagId={dagId ?? ""} base={useBase()} />;
}

function Card() {
  // The list is on the page of the navigation entry, which has this name in its address.
  return <JobsCard base="/plugin/stateflow" />;
}

Object.assign(globalThis, { Stateflow: Navigation, State: DagTab, "Stateflow jobs": Card });
