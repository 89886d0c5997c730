{{/*
The beginning of all names. Suffixes still fit into the 63 characters of a label. The name of a Service begins with a
letter, that of a release need not.
*/}}
{{- define "toolscout.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- else if regexMatch "^[0-9]" .Release.Name -}}
{{- printf "%s-%s" .Chart.Name .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Labels of an object. Takes a dict: root, component. */}}
{{- define "toolscout.labels" -}}
{{ include "toolscout.selectorLabels" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Labels that never change, by which objects find their pods. Without a component: of all pods of the release. */}}
{{- define "toolscout.selectorLabels" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "toolscout.image" -}}
{{- $image := .Values.image -}}
{{- $repository := required "image.repository is missing: build the image with the Dockerfile, push it to your registry, and give its name" $image.repository -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $repository ($image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{- define "toolscout.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "toolscout.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{/* The name of the Secret of an entry. Takes a dict: root, variable, item. */}}
{{- define "toolscout.secretName" -}}
{{- if .item.name -}}
{{- .item.name -}}
{{- else -}}
{{- $message := printf "secrets.existingSecret is missing: create a Secret with the keys of secrets.items, and give its name (needed for %s)" .variable -}}
{{- required $message .root.Values.secrets.existingSecret -}}
{{- end -}}
{{- end -}}

{{/* Whether DATABASE_URL leads to a pooler in transaction mode. Empty if not. */}}
{{- define "toolscout.hasPooler" -}}
{{- $common := .Values.settings | default dict -}}
{{- range list .Values.web .Values.worker -}}
{{- $own := .settings | default dict -}}
{{- if ne ($own.TOOLSCOUT_DATABASE_POOLER | default $common.TOOLSCOUT_DATABASE_POOLER | default "none") "none" -}}
true
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The secret settings of a component, by variable, as YAML. Takes a dict: root, component. */}}
{{- define "toolscout.secretItems" -}}
{{- $items := dict -}}
{{- range $variable, $item := .root.Values.secrets.items -}}
{{- $_ := set $items $variable $item -}}
{{- end -}}
{{- range $variable := list "DATABASE_URL" "TOOLSCOUT_SECRET_KEY" "TOOLSCOUT_ADMIN_API_KEY" -}}
{{- if not (hasKey $items $variable) -}}
{{- fail (printf "secrets.items.%s is missing: give the key of the Secret that holds it" $variable) -}}
{{- end -}}
{{- end -}}
{{- /* migrations need a session of Postgres */ -}}
{{- $direct := get $items "DATABASE_URL" -}}
{{- if include "toolscout.hasPooler" .root -}}
{{- if not (hasKey $items "TOOLSCOUT_LISTEN_DATABASE_URL") -}}
{{- fail "secrets.items.TOOLSCOUT_LISTEN_DATABASE_URL is missing: with TOOLSCOUT_DATABASE_POOLER it is the URL of Postgres itself, past the pooler" -}}
{{- end -}}
{{- $direct = get $items "TOOLSCOUT_LISTEN_DATABASE_URL" -}}
{{- end -}}
{{- if eq .component "worker" -}}
{{- $items = omit $items "TOOLSCOUT_ADMIN_API_KEY" -}}
{{- else if eq .component "migration" -}}
{{- $items = dict "DATABASE_URL" (.root.Values.migration.databaseUrl | default $direct) -}}
{{- end -}}
{{- toYaml $items -}}
{{- end -}}

{{/* Fail if anybody could read /metrics. Takes a dict: root, way (by which clients from outside reach the service). */}}
{{- define "toolscout.checkMetricsKey" -}}
{{- if not (hasKey .root.Values.secrets.items "TOOLSCOUT_METRICS_KEY") -}}
{{- fail (printf "secrets.items.TOOLSCOUT_METRICS_KEY is missing: through %s everybody could read /metrics" .way) -}}
{{- end -}}
{{- end -}}

{{/*
The environment of a container: secrets as the paths of files, then settings, those of the component last. Takes a dict:
root, component, settings (a list of dicts, the last one takes precedence).
*/}}
{{- define "toolscout.env" -}}
{{- $settings := dict -}}
{{- range $layer := .settings -}}
{{- range $name, $value := $layer -}}
{{- $_ := set $settings $name $value -}}
{{- end -}}
{{- end -}}
{{- range $variable, $_ := include "toolscout.secretItems" . | fromYaml }}
- name: {{ $variable }}_FILE
  value: /etc/toolscout/secrets/{{ $variable }}
{{- end }}
{{- range $name, $value := $settings }}
- name: {{ $name }}
  {{- /* numbers as JSON writes them: Go writes a million as 1e+06 */}}
  value: {{ kindIs "string" $value | ternary $value (toJson $value) | quote }}
{{- end }}
{{- with .root.Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What all containers share. Takes a dict: root, component, settings. */}}
{{- define "toolscout.container" -}}
image: {{ include "toolscout.image" .root }}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
securityContext: {{- toYaml .root.Values.pods.containerSecurityContext | nindent 2 }}
env: {{- include "toolscout.env" . | trim | nindent 2 }}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: secrets, mountPath: /etc/toolscout/secrets, readOnly: true}
  {{- if and .root.Values.files (ne .component "migration") }}
  - {name: files, mountPath: /files, readOnly: true}
  {{- end }}
  {{- with .root.Values.extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
What the specifications of all pods share. Takes a dict: root, component. Kubernetes would describe each Service of the
namespace in variables: TOOLSCOUT_PORT of a Service `toolscout` is no port number.
*/}}
{{- define "toolscout.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext: {{- toYaml .root.Values.pods.securityContext | nindent 2 }}
{{- with .root.Values.image.pullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
volumes:
  - name: tmp
    emptyDir: {sizeLimit: {{ .root.Values.pods.tmpSize }}}
  - name: secrets
    projected:
      defaultMode: 0440
      sources:
        {{- $root := .root }}
        {{- range $variable, $item := include "toolscout.secretItems" . | fromYaml }}
        - secret:
            name: {{ include "toolscout.secretName" (dict "root" $root "variable" $variable "item" $item) }}
            items: [{key: {{ $item.key | quote }}, path: {{ $variable }}}]
        {{- end }}
  {{- if and .root.Values.files (ne .component "migration") }}
  - name: files
    configMap: {name: {{ include "toolscout.fullname" .root }}-files}
  {{- end }}
  {{- with .root.Values.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* On which nodes pods run, and before which others. Takes the values of a component. */}}
{{- define "toolscout.placement" -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "priorityClassName" }}
{{- with get $ $name }}
{{ $name }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The pods of a Deployment. Takes a dict: root, component, values (those of the component), env, graceSeconds. */}}
{{- define "toolscout.podTemplate" -}}
{{- $root := .root -}}
{{- $selector := dict "root" $root "component" .component -}}
metadata:
  labels:
    {{- include "toolscout.labels" $selector | nindent 4 }}
    {{- with $root.Values.pods.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if or $root.Values.files $root.Values.pods.annotations }}
  annotations:
    {{- with $root.Values.files }}
    checksum/files: {{ toYaml . | sha256sum }}
    {{- end }}
    {{- with $root.Values.pods.annotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- end }}
spec:
  {{- include "toolscout.pod" $selector | nindent 2 }}
  serviceAccountName: {{ include "toolscout.serviceAccountName" $root }}
  terminationGracePeriodSeconds: {{ .graceSeconds }}
  {{- with .values.topologySpreadConstraints }}
  topologySpreadConstraints:
    {{- range . }}
    - {{ toYaml . | nindent 6 | trim }}
      labelSelector:
        matchLabels: {{- include "toolscout.selectorLabels" $selector | nindent 10 }}
      matchLabelKeys: [pod-template-hash]
    {{- end }}
  {{- end }}
  {{- include "toolscout.placement" .values | trim | nindent 2 }}
  containers:
    - name: toolscout
      command: [toolscout, serve]
      {{- /* A web page may reach the service under these names; those without a dot, and *.local, need not be named. */}}
      {{- $names := list (printf "%s.%s" (include "toolscout.fullname" $root) $root.Release.Namespace) }}
      {{- $names = append $names (printf "%s.svc" (first $names)) }}
      {{- if $root.Values.ingress.enabled }}
      {{- $names = concat $names ($root.Values.ingress.hosts | default list) }}
      {{- end }}
      {{- $common := $root.Values.settings | default dict }}
      {{- $own := .values.settings | default dict }}
      {{- with $own.TOOLSCOUT_SERVED_HOSTS | default $common.TOOLSCOUT_SERVED_HOSTS }}
      {{- $names = append $names . }}
      {{- end }}
      {{- $fixed := merge .env (dict
        "TOOLSCOUT_ENVIRONMENT" "production"
        "TOOLSCOUT_PORT" "8000"
        "TOOLSCOUT_DATA_DIR" "/home/toolscout/data"
        "TOOLSCOUT_SERVED_HOSTS" (join "," $names)) }}
      {{- $settings := list (dict "TOOLSCOUT_HOST" "0.0.0.0") $common $own $fixed }}
      {{- include "toolscout.container" (merge (dict "settings" $settings) $selector) | nindent 6 }}
      ports:
        - {name: http, containerPort: 8000}
      startupProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: {{ divf $root.Values.pods.startupSeconds 2 | ceil }}
      readinessProbe:
        httpGet: {path: /readyz, port: http}
        periodSeconds: 5
        timeoutSeconds: 3
        failureThreshold: 2
      {{- /* A restart does not help while Postgres is away: /healthz does not ask it. */}}
      livenessProbe:
        httpGet: {path: /healthz, port: http}
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources: {{- toYaml .values.resources | nindent 8 }}
{{- end -}}
